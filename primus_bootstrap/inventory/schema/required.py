"""Is every variable set that a role cannot do without, for each host that the role runs on?"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError, Problem
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.inventory.rules.context import ValidationContext


def check(reading: ValidationContext, *, sealed: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    """Yield a problem for every required variable that some host lacks.

    `sealed` are (group or host, file) of what could not be decrypted: it may hold the variable, so its hosts are left to the run.
    """
    waiting = {host for owner, _ in sealed for host in reading.groups.get(owner, (owner,))}
    required: dict[str, list[str]] = {}
    for option in load_options().values():
        if option.required and option.entry == "main":
            required.setdefault(option.owner, []).append(option.name)
    for role, names in sorted(required.items()):
        for pattern, needs, given in _uses(role):
            if needs and not reading.groups.get(needs):
                continue
            for name in sorted(set(names) - given):
                yield from _missing(reading, role, pattern, name, waiting)


def _missing(reading: ValidationContext, role: str, pattern: str, name: str, waiting: set[str]) -> Iterator[Problem]:
    try:
        hosts = reading.view.select(pattern)
    except PlanError:
        return
    lacking = [host for host in hosts if host not in reading.merged.of(name) and host not in waiting]
    if not lacking:
        return
    group = pattern if pattern in reading.groups else "all"
    entries = [entry for entry in reading.written.groups if entry.name == group]
    origin = entries[0].origin if entries else reading.host_origins[lacking[0]]
    shown = lacking[0] if len(lacking) == 1 else f"{lacking[0]} and {len(lacking) - 1} more"
    what = f"{name} is not set for {shown}, and role {role} cannot do without it"
    yield Problem(origin.file, origin.line, what, f"set {name} under `vars:` of {group}", "required")


@cache
def _plays() -> tuple[Mapping[str, Any], ...]:
    """Return every play of the phases, in file order."""
    found: list[Mapping[str, Any]] = []
    for path in sorted(content.playbooks_dir().glob("*.yml")):
        plays = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) or []
        found += [play for play in plays if isinstance(play, dict) and "hosts" in play]
    return tuple(found)


def _uses(role: str) -> Iterator[tuple[str, str, set[str]]]:
    """Yield of each play that names the role its host pattern, the group without which it has no hosts, and what it hands over."""
    for play in _plays():
        for entry in play.get("roles") or ():
            named = entry if isinstance(entry, dict) else {"role": entry}
            if (named.get("role") or named.get("name")) == role:
                hosts = play["hosts"]
                pattern = (",".join(hosts) if isinstance(hosts, list) else str(hosts)).removesuffix(content.NARROWED)
                every = content.EVERY_HOST_WITH.match(pattern)
                if every or "{{" not in pattern:
                    given = {*(play.get("vars") or {}), *(named.get("vars") or {}), *named}
                    yield ("all", every[1], given) if every else (pattern, "", given)
