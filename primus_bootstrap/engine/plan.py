"""hosts.yaml and the playbooks in, a `Plan` out; contacts no host and changes nothing."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.engine.plan_values import Plan, Step
from primus_bootstrap.engine.playbooks import groups_in, load_phases
from primus_bootstrap.errors import PlanError
from primus_bootstrap.inventory.groups import load_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.engine.playbooks import Phase
    from primus_bootstrap.inventory.cluster import Cluster

# Known groups that only collect others, or that name a way to hosts: no service is missing where no phase reads them.
_COLLECTING_GROUPS = ("k8s_cluster", "bastion")
# These look at hosts and bring no service up, whatever groups their plays name.
_CHECKING_PHASES = ("preflight", "verify")
_NAMES_SHOWN = 3


def make_plan(cluster: Cluster, *, phases: Sequence[str] = (), start: str | None = None, limit: str | None = None) -> Plan:
    """Bind the phases of `site.yml` to the hosts of one cluster.

    Args:
        cluster: the validated inventory.
        phases: only these, still in the order of `site.yml`; empty means all.
        start: leave out what comes before this phase.
        limit: an Ansible host pattern; hosts outside it are left out.

    Raises:
        PlanError: a phase that does not exist, a limit that matches no host, or nothing left to do.
    """
    known = load_phases(content.playbooks_dir())
    chosen = _choose(known, phases, start)
    allowed = _limited(cluster, limit)
    steps = tuple(step for phase in chosen if (step := _bind(cluster, phase, allowed)))
    if not steps:
        names = ", ".join(phase.name for phase in chosen)
        raise PlanError(f"nothing to do: no host of this plan is in a group that these phases read: {names}", fix=_empty_fix(chosen))
    return Plan(cluster=cluster.name, inventory=str(cluster.path), steps=steps, uncovered=_uncovered(cluster, known))


def _choose(known: tuple[Phase, ...], phases: Sequence[str], start: str | None) -> tuple[Phase, ...]:
    names = [phase.name for phase in known]
    for name in (*phases, *((start,) if start else ())):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise PlanError(f"no such phase: {name}", fix=f"{hint}choose from: {', '.join(names)}")
    first = names.index(start) if start else 0
    chosen = tuple(phase for phase in known[first:] if not phases or phase.name in phases)
    if not chosen:
        raise PlanError(f"nothing to do: {', '.join(phases)} comes before {start}", fix="name one or the other")
    return chosen


def _limited(cluster: Cluster, limit: str | None) -> frozenset[str] | None:
    if not limit:
        return None
    hosts = frozenset(cluster.select(limit))
    if not hosts:
        names = [host.name for host in cluster.hosts] + [name for name, members in cluster.groups.items() if members]
        near = difflib.get_close_matches(limit, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "name hosts or groups of hosts.yaml: gpu1, gpu[001:004], gpu_node:!gpu7"
        raise PlanError(f"the limit matches no host: {limit}", fix=hint)
    return hosts


def _bind(cluster: Cluster, phase: Phase, allowed: frozenset[str] | None) -> Step | None:
    found: dict[str, tuple[str, ...]] = {}
    for pattern in phase.patterns:
        hosts = cluster.select(pattern) if _can_match(cluster, pattern) else ()
        if kept := hosts if allowed is None else tuple(host for host in hosts if host in allowed):
            found[pattern] = kept
    if not found:
        return None
    return Step(
        phase=phase.name,
        playbook=phase.path.name,
        hosts=tuple(dict.fromkeys(host for hosts in found.values() for host in hosts)),
        roles=tuple(dict.fromkeys(role for play in phase.plays if play.pattern in found for role in play.roles)),
        why="; ".join(f"{pattern}: {_few(hosts)}" for pattern, hosts in found.items()),
    )


def _can_match(cluster: Cluster, pattern: str) -> bool:
    """Tell whether a pattern names anything of this inventory: Ansible warns about each name that it does not know."""
    return any(name in cluster.groups for name in groups_in(pattern)) or not pattern.replace("_", "").isalnum()


def _few(hosts: tuple[str, ...]) -> str:
    shown = ", ".join(hosts[:_NAMES_SHOWN])
    more = ", …" if len(hosts) > _NAMES_SHOWN else ""
    return f"{shown}{more} ({len(hosts)} host{'s' if len(hosts) != 1 else ''})"


def _uncovered(cluster: Cluster, known: tuple[Phase, ...]) -> tuple[str, ...]:
    read = {name for phase in known if phase.name not in _CHECKING_PHASES for pattern in phase.patterns for name in groups_in(pattern)}
    return tuple(name for name in load_groups() if cluster.groups.get(name) and name not in read and name not in _COLLECTING_GROUPS)


def _empty_fix(chosen: tuple[Phase, ...]) -> str:
    groups = dict.fromkeys(name for phase in chosen for pattern in phase.patterns for name in groups_in(pattern))
    return f"put hosts into one of these groups: {', '.join(groups)}"
