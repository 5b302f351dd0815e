"""Read the pinned release of Kubespray: its commit, its requirements, and the Kubernetes versions that it installs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

_DATA = Path(__file__).with_name("data") / "kubespray_release.yml"


@dataclass(frozen=True, slots=True)
class Release:
    """One release of Kubespray.

    `tree` is the git tree of `commit`, which identifies an archive without history. `requirements` are pip's pins, `kubernetes` the
    exact versions that the release installs, newest first.
    """

    version: str
    commit: str
    tree: str
    url: str
    requirements: tuple[str, ...]
    kubernetes: tuple[str, ...]

    @property
    def newest(self) -> str:
        """The newest version of Kubernetes, which is Kubespray's default."""
        return self.kubernetes[0]

    @property
    def oldest(self) -> str:
        """The oldest version of Kubernetes."""
        return self.kubernetes[-1]

    def version_fix(self, text: str) -> str:
        """Return a fix for a version that is not in `kubernetes`."""
        bare = text.removeprefix("v")
        if bare in self.kubernetes:
            return f"remove the v: {bare}"
        minor = ".".join(bare.split(".")[:2])
        same = [one for one in self.kubernetes if one.startswith(f"{minor}.")]
        return f"choose from: {', '.join(same)}" if same else f"choose a version from {self.oldest} to {self.newest}"


@cache
def load_release() -> Release:
    """Read the data file."""
    data = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    pins = tuple(f"{name}=={version}" for name, version in data["requirements"].items())
    return Release(data["version"], data["commit"], data["tree"], data["url"], pins, tuple(data["kubernetes"]))
