"""Read the releases of Kubespray: commit, requirements, the Kubernetes versions that each installs, and changed variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

# The variable of hosts.yaml with the name of a release.
VARIABLE = "kubespray_release"
_DATA = Path(__file__).with_name("data") / "kubespray_releases.yml"


@dataclass(frozen=True, slots=True)
class Release:
    """One release of Kubespray.

    `version` is its name in hosts.yaml. `tag` is empty if the release is a commit without a tag. `tree` is the git tree of `commit`,
    which identifies an archive without history. `requirements` are pip's pins, `kubernetes` the exact versions that the release
    installs, newest first. `added`, `removed` and `renamed` are the differences to the variables of the default release.
    """

    version: str
    tag: str
    commit: str
    tree: str
    url: str
    requirements: tuple[str, ...]
    kubernetes: tuple[str, ...]
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """The version in the release's own galaxy.yml."""
        return self.version.removeprefix("v").split("-")[0]

    @property
    def newest(self) -> str:
        """The newest version of Kubernetes, which is Kubespray's default."""
        return self.kubernetes[0]

    @property
    def oldest(self) -> str:
        """The oldest version of Kubernetes."""
        return self.kubernetes[-1]

    def version_fix(self, text: str) -> str:
        """Return a fix for a version that is not in `kubernetes`: the release that has it, or the versions that can be chosen."""
        bare = text.removeprefix("v")
        if bare in self.kubernetes:
            return f"remove the v: {bare}"
        if other := _release_with(bare):
            note = "" if other.tag else "; it is a commit that has no tag"
            return f"set `{VARIABLE}: {other.version}` in hosts.yaml, which installs {other.oldest} to {other.newest}{note}"
        minor = ".".join(bare.split(".")[:2])
        same = [one for one in self.kubernetes if one.startswith(f"{minor}.")]
        return f"choose from: {', '.join(same)}" if same else f"choose a version from {self.oldest} to {self.newest}"


def _release_with(version: str) -> Release | None:
    """Return the oldest release that installs a version of Kubernetes."""
    return next((release for release in load_releases().values() if version in release.kubernetes), None)


@cache
def load_releases() -> Mapping[str, Release]:
    """Return every release by its name, oldest first."""
    data = _data()
    return {name: _release(name, raw, data["url"]) for name, raw in data["releases"].items()}


def load_release(version: str = "") -> Release:
    """Return the release with a name; without a name the default one.

    Raises:
        PlanError: There is no such release.
    """
    releases = load_releases()
    name = version or _data()["default"]
    if name not in releases:
        raise PlanError(f"{VARIABLE} {name}: no such release of Kubespray", fix=f"choose from: {', '.join(releases)}")
    return releases[name]


@cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = yaml.safe_load(_DATA.read_text(encoding="utf-8"))
    return data


def _release(name: str, raw: Mapping[str, Any], url: str) -> Release:
    pins = tuple(f"{package}=={version}" for package, version in raw["requirements"].items())
    changed = raw["variables"]
    return Release(
        name,
        raw["tag"],
        raw["commit"],
        raw["tree"],
        url,
        pins,
        tuple(raw["kubernetes"]),
        frozenset(changed["added"]),
        frozenset(changed["removed"]),
        changed["renamed"],
    )
