"""Reads the shipped playbooks: the phases in the order of `site.yml`, with their plays, host patterns and roles."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.inventory.cluster import Cluster

SITE = "site.yml"
_ROLE_IMPORTS = (
    "import_role",
    "include_role",
    "ansible.builtin.import_role",
    "ansible.builtin.include_role",
)
_PLAYBOOK_IMPORTS = ("import_playbook", "ansible.builtin.import_playbook")


@dataclass(frozen=True, slots=True)
class Call:
    """One use of a role in a play; `entry` is the tasks file that it starts with."""

    role: str
    entry: str = "main"


@dataclass(frozen=True, slots=True)
class Play:
    """One play: its host pattern, its roles in order, and how a failed host affects the others.

    `narrowed`: `-e node=NAME` narrows the play to that host; `pattern` is the one without it. `needs`: the play has no hosts
    if this group is empty, whatever the pattern matches. `others_of`: the same if the node is not in this group.
    `vars_files`: variable files that the play passes to its roles.
    `path` and `number`: the file of the play and its index there.
    """

    pattern: str
    roles: tuple[str, ...]
    any_errors_fatal: bool = False
    max_fail_percentage: bool = False
    narrowed: bool = False
    needs: str = ""
    others_of: str = ""
    calls: tuple[Call, ...] = ()
    vars_files: tuple[Path, ...] = ()
    path: Path | None = None
    number: int = 0

    @property
    def stops_all(self) -> bool:
        """Whether a failure stops all other hosts, to protect a quorum."""
        return self.any_errors_fatal or self.max_fail_percentage


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a run; `playbook` is its path below `playbooks/`, `plays` are in the order in which Ansible runs them."""

    name: str
    path: Path
    playbook: str
    plays: tuple[Play, ...]

    @property
    def patterns(self) -> tuple[str, ...]:
        """The host patterns of the plays, without duplicates."""
        return tuple(dict.fromkeys(play.pattern for play in self.plays))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the plays, without duplicates."""
        return tuple(dict.fromkeys(role for play in self.plays for role in play.roles))


@cache
def load_phases(playbooks_dir: Path, playbook: str = SITE) -> tuple[Phase, ...]:
    """Return the phases of a playbook in that folder: its imports, in order, or the playbook itself if it has plays."""
    paths = _parts(playbooks_dir / playbook)
    return tuple(Phase(path.stem, path, str(path.relative_to(playbooks_dir)), load_plays(path)) for path in paths)


@cache
def load_plays(path: Path) -> tuple[Play, ...]:
    """Return the plays of a playbook and of its imports."""
    return tuple(_plays(path))


def _parts(path: Path) -> list[Path]:
    """Return the imports of a playbook, or the playbook itself if it has plays; expand an import of `site.yml`."""
    imports = [_imported(entry) for entry in _entries(path)]
    if not all(imports):
        return [path]
    parts = [Path(os.path.normpath(path.parent / name)) for name in imports]
    return [inner for part in parts for inner in (_parts(part) if part.name == SITE else [part])]


def hosts_of(cluster: Cluster, play: Play) -> tuple[str, ...]:
    """Return the hosts of a play in a cluster."""
    inactive = play.others_of or (play.needs and not cluster.groups.get(play.needs))
    return () if inactive else cluster.select(play.pattern)


def groups_in(pattern: str) -> tuple[str, ...]:
    """Return the names in an Ansible host pattern, without those that it excludes (`!name`)."""
    parts = [part.strip() for part in re.split(r"[:,]", re.sub(r"\[[^\]]*\]", "", pattern))]
    return tuple(part.lstrip("&") for part in parts if part and not part.startswith("!"))


def _entries(path: Path) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) or []
    return loaded


def _imported(entry: dict[str, Any]) -> str:
    return next((str(entry[key]) for key in _PLAYBOOK_IMPORTS if key in entry), "")


def _plays(path: Path) -> Iterator[Play]:
    for number, entry in enumerate(_entries(path)):
        if name := _imported(entry):
            yield from _plays(path.parent / name)
        else:
            hosts = entry.get("hosts", "")
            pattern = ",".join(hosts) if isinstance(hosts, list) else str(hosts)
            every = content.EVERY_HOST_WITH.match(pattern.removesuffix(content.NARROWED))
            others = content.OTHERS_OF.match(pattern)
            plain = f"{others[1]}:!{content.THE_NODE}" if others else pattern.removesuffix(content.NARROWED)
            calls = tuple(_calls(entry))
            yield Play(
                pattern="all" if every else plain,
                needs=every[1] if every else "",
                others_of=others[1] if others else "",
                roles=tuple(call.role for call in calls),
                any_errors_fatal=bool(entry.get("any_errors_fatal")),
                max_fail_percentage="max_fail_percentage" in entry,
                narrowed=pattern.endswith(content.NARROWED),
                calls=calls,
                vars_files=tuple(Path(os.path.normpath(path.parent / name)) for name in entry.get("vars_files") or ()),
                path=path,
                number=number,
            )


def _calls(entry: dict[str, Any]) -> Iterator[Call]:
    """Yield the roles of a play in the order in which Ansible runs its sections."""
    yield from _imported_roles(entry.get("pre_tasks"))
    for role in entry.get("roles") or ():
        yield Call(role if isinstance(role, str) else str(role.get("role") or role.get("name")))
    yield from _imported_roles(entry.get("tasks"))
    yield from _imported_roles(entry.get("post_tasks"))


def _imported_roles(tasks: list[dict[str, Any]] | None) -> Iterator[Call]:
    for task in tasks or ():
        for key in _ROLE_IMPORTS:
            if key in task:
                yield Call(str(task[key]["name"]), str(task[key].get("tasks_from", "main")))
        for section in ("block", "rescue", "always"):
            yield from _imported_roles(task.get(section))
