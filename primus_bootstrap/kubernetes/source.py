"""The source of Kubespray's release, from hosts.yaml."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """The first of `folder`, `archive` (with its `sha256`), `bundle` and git at `url` that is set.

    `packages` is a folder of wheels; if empty, pip uses the bundle's wheels, or its index without a bundle. `archive_url` is the
    archive's upstream address, which is its name in a bundle.
    """

    folder: str = ""
    archive: str = ""
    sha256: str = ""
    url: str = ""
    packages: str = ""
    bundle: str = ""
    archive_url: str = ""
