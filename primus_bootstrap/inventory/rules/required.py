"""Check that every variable that a role requires is set for each host that the role runs on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError, Problem
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.inventory.rules.context import ValidationContext
    from primus_bootstrap.inventory.schema.specs import Option


@dataclass(frozen=True, slots=True)
class _RoleUse:
    """One use of a role in a play.

    `pattern` is the play's host pattern, `needed_group` a group without which the play has no hosts, or empty. `passed` are the
    variables that the play sets.
    """

    pattern: str
    needed_group: str
    passed: frozenset[str]


def check(context: ValidationContext, *, encrypted_owners: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for every required variable that is not set for some host.

    `encrypted_owners` are the groups and hosts whose files could not be decrypted. Those files may set the variable, so their
    hosts are not checked here.
    """
    unchecked = {host for owner in encrypted_owners for host in context.groups.get(owner, (owner,))}
    required: dict[str, list[Option]] = {}
    for option in load_options().values():
        if option.required and option.entry == "main":
            required.setdefault(option.owner, []).append(option)
    for role, options in sorted(required.items()):
        for use in _uses(role):
            if use.needed_group and not context.groups.get(use.needed_group):
                continue
            for option in sorted(options, key=lambda one: one.name):
                if option.name not in use.passed:
                    yield from _missing(context, option, use.pattern, unchecked)


def _missing(context: ValidationContext, option: Option, pattern: str, unchecked: set[str]) -> Iterator[Problem]:
    try:
        hosts = context.view.select(pattern)
    except PlanError:
        return
    missing = [host for host in hosts if host not in context.variable_index.by_host(option.name) and host not in unchecked]
    if not missing:
        return
    group = pattern if pattern in context.groups else "all"
    origin = next((entry.origin for entry in context.source_map.groups if entry.name == group), context.host_origins[missing[0]])
    shown = missing[0] if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1} more"
    what = f"{option.name} is not set for {shown}, and role {option.owner} requires it"
    generated = option.no_log and option.type == "str"
    fix = f"primus-bootstrap secrets init {context.display_path}" if generated else f"set {option.name} under `vars:` of {group}"
    yield origin.problem(what, fix, "required")


@cache
def _plays() -> tuple[Mapping[str, Any], ...]:
    """Return the plays of all playbooks, in file order."""
    found: list[Mapping[str, Any]] = []
    for path in sorted(content.playbooks_dir().glob("*.yml")):
        plays = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) or []
        found += [play for play in plays if isinstance(play, dict) and "hosts" in play]
    return tuple(found)


def _uses(role: str) -> Iterator[_RoleUse]:
    """Yield every use of a role in a play whose hosts the inventory alone determines."""
    for play in _plays():
        for entry in play.get("roles") or ():
            item = entry if isinstance(entry, dict) else {"role": entry}
            if (item.get("role") or item.get("name")) != role:
                continue
            hosts = play["hosts"]
            pattern = (",".join(hosts) if isinstance(hosts, list) else str(hosts)).removesuffix(content.NARROWED)
            passed = frozenset({*(play.get("vars") or {}), *(item.get("vars") or {}), *item})
            if conditional := content.EVERY_HOST_WITH.match(pattern):
                yield _RoleUse("all", conditional[1], passed)
            elif "{{" not in pattern:
                yield _RoleUse(pattern, "", passed)
