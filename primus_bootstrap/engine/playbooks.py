"""What the shipped playbooks say: the phases in the order of `site.yml`, and each phase's plays, host patterns and roles.

The only module that reads playbooks; `site.yml` is the one place that holds the order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ROLE_IMPORTS = (
    "import_role",
    "include_role",
    "ansible.builtin.import_role",
    "ansible.builtin.include_role",
)
_PLAYBOOK_IMPORTS = ("import_playbook", "ansible.builtin.import_playbook")


@dataclass(frozen=True, slots=True)
class Play:
    """One play: its host pattern as written, the roles that it names, in order, and what a failing host does to others."""

    pattern: str
    roles: tuple[str, ...]
    any_errors_fatal: bool = False
    max_fail_percentage: bool = False

    @property
    def stops_all(self) -> bool:
        """Whether failures in it are meant to stop all other hosts: quorum is at stake there."""
        return self.any_errors_fatal or self.max_fail_percentage


@dataclass(frozen=True, slots=True)
class Phase:
    """One import of `site.yml`; `plays` are in the order in which Ansible runs them."""

    name: str
    path: Path
    plays: tuple[Play, ...]

    @property
    def patterns(self) -> tuple[str, ...]:
        """The host patterns of the plays, each once."""
        return tuple(dict.fromkeys(play.pattern for play in self.plays))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the plays, each once."""
        return tuple(dict.fromkeys(role for play in self.plays for role in play.roles))


@cache
def load_phases(playbooks_dir: Path) -> tuple[Phase, ...]:
    """Return the phases in the order of the `site.yml` of that folder."""
    site = playbooks_dir / "site.yml"
    paths = [site.parent / name for entry in _entries(site) if (name := _imported(entry))]
    return tuple(Phase(name=path.stem, path=path, plays=tuple(_plays(path))) for path in paths)


def groups_in(pattern: str) -> tuple[str, ...]:
    """Return the names that an Ansible host pattern selects from; what it only excludes (`!name`) is left out."""
    parts = [part.strip() for part in re.split(r"[:,]", re.sub(r"\[[^\]]*\]", "", pattern))]
    return tuple(part.lstrip("&") for part in parts if part and not part.startswith("!"))


def _entries(path: Path) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) or []
    return loaded


def _imported(entry: dict[str, Any]) -> str:
    return next((str(entry[key]) for key in _PLAYBOOK_IMPORTS if key in entry), "")


def _plays(path: Path) -> Iterator[Play]:
    for entry in _entries(path):
        if name := _imported(entry):
            yield from _plays(path.parent / name)
        else:
            hosts = entry.get("hosts", "")
            pattern = ",".join(hosts) if isinstance(hosts, list) else str(hosts)
            yield Play(pattern, tuple(_roles(entry)), bool(entry.get("any_errors_fatal")), "max_fail_percentage" in entry)


def _roles(entry: dict[str, Any]) -> Iterator[str]:
    """Yield role names in the order in which Ansible runs the sections of a play."""
    yield from _imported_roles(entry.get("pre_tasks"))
    for role in entry.get("roles") or ():
        yield role if isinstance(role, str) else str(role.get("role") or role.get("name"))
    yield from _imported_roles(entry.get("tasks"))
    yield from _imported_roles(entry.get("post_tasks"))


def _imported_roles(tasks: list[dict[str, Any]] | None) -> Iterator[str]:
    for task in tasks or ():
        for key in _ROLE_IMPORTS:
            if key in task:
                yield str(task[key]["name"])
        for section in ("block", "rescue", "always"):
            yield from _imported_roles(task.get(section))
