"""The values of a bundle: what is fetched and why, and what a connected machine found for it."""

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
    """A bundle, or a lock, could not be brought to the state that was asked for."""

    exit_code: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a role by the playbooks: on which hosts, why (the host pattern), and what the play passes to it.

    `play` says where the play stands: its file, and which one it is there.
    """

    role: str
    entry: str
    pattern: str
    hosts: tuple[str, ...]
    vars_files: tuple[Path, ...] = ()
    play: tuple[Path, int] | None = None


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """What kind of host packages are for: apt's code name of the release, and its word for the processor."""

    release: str
    architecture: str

    def __str__(self) -> str:
        """Return it as one word, as folders and tables show it."""
        return f"{self.release}-{self.architecture}"


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a role fetches.

    `name` is a package's name, a file's URL (`oci://…` for a chart in a registry), a wheel's requirement or an image's reference.
    `target` is set for packages only; `sha256` is what the role itself pins, and empty where it pins nothing. `together` are requirements
    of wheels that are resolved in one go, with all that they depend on; this one is among them.
    """

    kind: Kind
    name: str
    target: Target | None = None
    version: str = ""
    sha256: str = ""
    together: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as its role brings it for a host: what has to be known to render it. `file` is one of the user's own.

    Variables of the chart begin with `prefix`, which is the role's name but where a role has several charts.
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
class Beyond:
    """What an apply fetches and no bundle holds or locks: what it is, and how else it comes into a closed network."""

    what: str
    how: str
    role: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A need with everybody who has it: roles, host patterns of the plays, hosts."""

    need: Need
    roles: tuple[str, ...]
    patterns: tuple[str, ...]
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """What a role fetches on some hosts could not be told: why, and how to mend it."""

    role: str
    hosts: tuple[str, ...]
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Needs:
    """All that an apply fetches. `sets` are the packages that one host gets together, each set once; `charts` name images as well."""

    wanted: tuple[Wanted, ...]
    sets: tuple[tuple[Target, frozenset[str]], ...]
    unknown: tuple[Unknown, ...] = ()
    charts: tuple[Chart, ...] = ()
    beyond: tuple[Beyond, ...] = ()

    def of(self, kind: Kind) -> tuple[Need, ...]:
        """Return the needs of one kind."""
        return tuple(wanted.need for wanted in self.wanted if wanted.need.kind == kind)


@dataclass(frozen=True, slots=True)
class Locked:
    """One thing of a lock, exactly: `path` is where it lies in the bundle, `url` where it was found. A size of 0 was not told.

    An image has the digest of its manifest as sum, and no path: a bundle does not hold it. `pinned` says whether a role, a commit or the
    reference itself stated the sum; otherwise it is what a connected machine found.
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
    """The images that a chart names, rendered with values; `key` changes with chart, version and any value."""

    role: str
    key: str
    images: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lock:
    """What a connected machine resolved. `sets` are the packages that were asked for, before what they depend on was added.

    `wheel_sets` are the same of wheels, each with the Python (see `wheels.python_of`) that it was resolved for.
    """

    items: tuple[Locked, ...] = ()
    sets: tuple[tuple[Target, frozenset[str]], ...] = ()
    wheel_sets: tuple[tuple[str, frozenset[str]], ...] = ()
    charts: tuple[Rendered, ...] = ()

    @property
    def files(self) -> tuple[Locked, ...]:
        """What a bundle holds."""
        return tuple(item for item in self.items if item.path)

    def pin(self, need: Need) -> Pin:
        """Tell what decides which content an apply gets: the role or the reference, this lock, or whoever answers then.

        Nodes pull an image by its reference, whatever is locked, so that only a digest in the reference pins it.
        """
        if need.sha256 or (need.kind == "image" and "@sha256:" in need.name):
            return "pinned"
        item = self.find(need) if need.kind != "image" else None
        return "unpinned" if item is None else "pinned" if item.pinned and need.kind == "file" else "lock"

    def find(self, need: Need) -> Locked | None:
        """Return what is locked for a need, or None: a package needs its set of packages to be locked as well, see `unlocked_sets`."""
        for item in self.items:
            same = (item.kind, item.name, item.target) == (need.kind, need.name, need.target)
            if same and (not need.sha256 or need.sha256 == item.sha256) and (not need.version or need.version == item.version):
                return item
        return None

    def covers_wheels(self, python: str, requirements: frozenset[str]) -> bool:
        """Tell whether these wheels were resolved together, for this Python."""
        return any(python == known and requirements <= found for known, found in self.wheel_sets)

    def covers(self, target: Target, packages: frozenset[str]) -> bool:
        """Tell whether these packages were resolved together, or as part of more."""
        return any(target == known and packages <= found for known, found in self.sets)


@dataclass(frozen=True, slots=True)
class Unresolved:
    """What could not be locked: a need in words, why, and how to mend it."""

    what: str
    reason: str
    fix: str
