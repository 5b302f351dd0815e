"""The values of a bundle: the downloads of an apply and why they are needed, and their locked versions and checksums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from primus_bootstrap.core.errors import PrimusError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Kind = Literal["package", "file", "wheel", "image"]
KINDS: tuple[Kind, ...] = ("package", "file", "wheel", "image")
NOT_LOCKED = "not locked"
Pin = Literal["pinned", "lock", "unpinned"]


class BundleError(PrimusError):
    """A bundle or its lock file could not be created or read."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a role by a play: the host pattern, the hosts, and the variables that the play passes.

    `play` is the file of the play and its index in the file.
    """

    role: str
    entry: str
    pattern: str
    hosts: tuple[str, ...]
    vars_files: tuple[Path, ...] = ()
    play: tuple[Path, int] | None = None


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """The kind of host for packages: apt's code name of the release, and dpkg's architecture."""

    release: str
    architecture: str

    def __str__(self) -> str:
        """Return the name for folders and tables."""
        return f"{self.release}-{self.architecture}"


@dataclass(frozen=True, slots=True)
class Need:
    """One download of a role."""

    kind: Kind  # the kind of the download
    name: str  # a package's name, a file's URL (`oci://…` for a chart in a registry), a wheel's requirement or an image's reference
    target: Target | None = None  # the kind of host, for packages only
    version: str = ""  # the version, or empty
    sha256: str = ""  # the checksum that the role pins, or empty
    together: tuple[str, ...] = ()  # all requirements of wheels that are resolved together, with their dependencies


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with the values of a host, to render it. `file` is the user's own chart.

    `prefix` is the prefix of the chart's variables: the role's name, or another one if the role has several charts.
    """

    role: str
    prefix: str
    name: str
    version: str
    url: str
    file: str
    sha256: str
    release: str
    namespace: str
    values: Mapping[str, Any]
    pattern: str
    host: str


@dataclass(frozen=True, slots=True)
class External:
    """A download that no bundle contains: what it is, and how to provide it in a closed network."""

    what: str
    how: str
    role: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A need with the roles, host patterns and hosts that have it."""

    need: Need
    roles: tuple[str, ...]
    patterns: tuple[str, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A role whose downloads on some hosts are unknown, with the reason and the fix."""

    role: str
    hosts: tuple[str, ...]
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Needs:
    """All downloads of an apply. `sets` are the distinct sets of packages of the hosts; `charts` also require images."""

    requirements: tuple[Requirement, ...]
    sets: tuple[tuple[Target, frozenset[str]], ...]
    unknown: tuple[Unknown, ...] = ()
    charts: tuple[Chart, ...] = ()
    external: tuple[External, ...] = ()

    def of(self, kind: Kind) -> tuple[Need, ...]:
        """Return the needs of one kind."""
        return tuple(requirement.need for requirement in self.requirements if requirement.need.kind == kind)


@dataclass(frozen=True, slots=True)
class Locked:
    """One item of a lock. `path` is its path in the bundle. A size of 0 is unknown.

    The sha256 of an image is the digest of its manifest, its url is NAME:TAG@DIGEST, and its path is empty: a bundle has its parts by their
    digests (image_layout). `pinned` means that a role, a commit or the reference determines the checksum; otherwise `bundle lock`
    recorded it.
    """

    kind: Kind
    name: str
    version: str
    url: str
    sha256: str
    size_bytes: int
    path: str
    target: Target | None = None
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class Rendered:
    """The images of a rendered chart. `key` depends on the chart, its version and its values."""

    role: str
    key: str
    images: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lock:
    """The result of `bundle lock`. `sets` are the requested packages, without their dependencies.

    `wheel_sets` are the requested wheels, each with the Python (see `wheels.python_tag`) for which it was resolved.
    """

    items: tuple[Locked, ...] = ()
    sets: tuple[tuple[Target, frozenset[str]], ...] = ()
    wheel_sets: tuple[tuple[str, frozenset[str]], ...] = ()
    charts: tuple[Rendered, ...] = ()

    @property
    def files(self) -> tuple[Locked, ...]:
        """The items that every bundle contains as files."""
        return tuple(item for item in self.items if item.path)

    @property
    def images(self) -> tuple[Locked, ...]:
        """The images, which a bundle contains if `bundle create --images` wrote it."""
        return tuple(item for item in self.items if item.kind == "image")

    def pin(self, need: Need) -> Pin:
        """Return what determines the content: the role or reference (`pinned`), this lock (`lock`), or nothing (`unpinned`).

        Nodes pull an image by its reference, so that only a digest in the reference pins it.
        """
        if need.sha256 or (need.kind == "image" and "@sha256:" in need.name):
            return "pinned"
        item = self.find(need) if need.kind != "image" else None
        return "unpinned" if item is None else "pinned" if item.pinned and need.kind == "file" else "lock"

    def find(self, need: Need) -> Locked | None:
        """Return the locked item of a need, or None. The set of a package must also be locked: see `covers`."""
        for item in self.items:
            same = (item.kind, item.name, item.target) == (need.kind, need.name, need.target)
            if same and (not need.sha256 or need.sha256 == item.sha256) and (not need.version or need.version == item.version):
                return item
        return None

    def covers_wheels(self, python: str, requirements: frozenset[str]) -> bool:
        """Return whether these wheels were resolved together for this Python."""
        return any(python == locked and requirements <= names for locked, names in self.wheel_sets)

    def covers(self, target: Target, packages: frozenset[str]) -> bool:
        """Return whether these packages were resolved together, or as part of a larger set."""
        return any(target == locked and packages <= names for locked, names in self.sets)


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A need that could not be locked, with the reason and the fix."""

    what: str
    reason: str
    fix: str
