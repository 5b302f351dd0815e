"""Where the release of Kubespray comes from, as hosts.yaml says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """Where the release comes from, in this order: `folder`, `archive` (with its `sha256`), `bundle`, git at `url`.

    `packages` is a folder of wheels for a closed network; the bundle's where it is empty, without a bundle pip's own index. `archive_url`
    is where upstream has the archive, and so under which name it lies in a bundle.
    """

    folder: str = ""
    archive: str = ""
    sha256: str = ""
    url: str = ""
    packages: str = ""
    bundle: str = ""
    archive_url: str = ""
