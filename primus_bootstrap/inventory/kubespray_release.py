"""The pinned release of Kubespray as data: its commit, what it needs, and the Kubernetes versions that it installs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

_DATA = Path(__file__).with_name("data") / "kubespray_release.yml"


@dataclass(frozen=True, slots=True)
class Release:
    """One release. `kubernetes` holds the exact versions that it installs, newest first; `requirements` pip's pins.

    `tree` is what `commit` holds, by which an archive without history is known.
    """

    version: str
    commit: str
    tree: str
    url: str
    requirements: tuple[str, ...]
    kubernetes: tuple[str, ...]

    @property
    def newest(self) -> str:
        """The newest version of Kubernetes, Kubespray's default."""
        return self.kubernetes[0]

    @property
    def oldest(self) -> str:
        """The oldest version of Kubernetes."""
        return self.kubernetes[-1]

    def version_fix(self, text: str) -> str:
        """Say what to write in the place of a version that is none of `kubernetes`."""
        bare = text.removeprefix("v")
        if bare in self.kubernetes:
            return f"write it without the v: {bare}"
        minor = ".".join(bare.split(".")[:2])
        same = [one for one in self.kubernetes if one.startswith(f"{minor}.")]
        return f"choose from: {', '.join(same)}" if same else f"set it to {self.newest}, or to one from {self.oldest} on"


@cache
def load_release() -> Release:
    """Read the data file."""
    data = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    pins = tuple(f"{name}=={version}" for name, version in data["requirements"].items())
    return Release(data["version"], data["commit"], data["tree"], data["url"], pins, tuple(data["kubernetes"]))
