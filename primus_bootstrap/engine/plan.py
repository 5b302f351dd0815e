"""Makes the plan of a run from the inventory and the playbooks. It contacts no host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.engine.plan_values import Plan, Step
from primus_bootstrap.engine.playbooks import SITE, groups_in, load_phases
from primus_bootstrap.inventory.schema.groups import load_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.engine.playbooks import Phase, Play
    from primus_bootstrap.inventory.cluster import Cluster

# Groups that stand for no service, so that no phase needs to use them.
_GROUPS_WITHOUT_SERVICE = ("k8s_cluster", "bastion", "spare", "kube_infra_node")
# Phases that only check hosts and install nothing.
_CHECKING_PHASES = ("preflight", "verify")
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TargetHost:
    """The host that a day-2 playbook works on (`node`), and the host that it replaces (`old`)."""

    node: str
    old: str = ""


def make_plan(  # noqa: PLR0913 - one parameter per way to narrow a run
    cluster: Cluster,
    *,
    playbook: str = SITE,
    phases: Sequence[str] = (),
    start: str | None = None,
    limit: str | None = None,
    target: TargetHost | None = None,
) -> Plan:
    """Match the phases of a playbook with the hosts of a cluster.

    Args:
        playbook: Path below `playbooks/`.
        phases: Use only these phases, in the order of the playbook; empty for all.
        start: Skip the phases before this one.
        limit: An Ansible host pattern; use only the hosts that match.
        target: The host that a day-2 playbook works on.

    Raises:
        UsageError: A phase does not exist, or the limit matches no host.
        PlanError: No step remains.
    """
    selected = _select_phases(load_phases(content.playbooks_dir(), playbook), phases, start)
    allowed = _allowed_hosts(cluster, limit)
    steps = tuple(step for phase in selected if (step := _make_step(cluster, phase, allowed, target)))
    if not steps:
        names = ", ".join(phase.name for phase in selected)
        groups = dict.fromkeys(name for phase in selected for pattern in phase.patterns for name in groups_in(pattern))
        what = f"nothing to do: these phases have no host in this plan: {names}"
        raise PlanError(what, fix=f"add a host to one of these groups in hosts.yaml: {', '.join(groups)}")
    return Plan(cluster=cluster.name, inventory=str(cluster.path), steps=steps, uncovered=_uncovered(cluster, playbook, target))


def _select_phases(available: tuple[Phase, ...], phases: Sequence[str], start: str | None) -> tuple[Phase, ...]:
    names = [phase.name for phase in available]
    for name in (*phases, *((start,) if start else ())):
        if name not in names:
            near = nearest(name, names)
            hint = f"did you mean {near}? " if near else ""
            raise UsageError(f"no such phase: {name}", fix=f"{hint}choose from: {', '.join(names)}")
    first = names.index(start) if start else 0
    selected = tuple(phase for phase in available[first:] if not phases or phase.name in phases)
    if not selected:
        raise UsageError(f"nothing to do: {', '.join(phases)} comes before {start}", fix="remove --phase or --from")
    return selected


def _allowed_hosts(cluster: Cluster, limit: str | None) -> frozenset[str] | None:
    if not limit:
        return None
    hosts = frozenset(cluster.select(limit))
    if not hosts:
        names = [host.name for host in cluster.hosts] + [name for name, members in cluster.groups.items() if members]
        near = nearest(limit, names)
        hint = f"did you mean {near}?" if near else "use hosts or groups of hosts.yaml: gpu1, gpu[001:004], gpu_node:!gpu7"
        raise UsageError(f"the limit matches no host: {limit}", fix=hint)
    return hosts


def _make_step(cluster: Cluster, phase: Phase, allowed: frozenset[str] | None, target: TargetHost | None) -> Step | None:
    by_pattern: dict[str, tuple[str, ...]] = {}
    roles: dict[str, None] = {}
    for play in phase.plays:
        hosts = _hosts_of(cluster, play, target)
        if hosts := hosts if allowed is None else tuple(host for host in hosts if host in allowed):
            by_pattern[_with_target(play.pattern, target)] = hosts
            roles |= dict.fromkeys(play.roles)
    if not by_pattern or (target and not _concerns_target(cluster, phase, target)):
        return None
    return Step(
        phase=phase.name,
        playbook=phase.playbook,
        hosts=tuple(dict.fromkeys(host for hosts in by_pattern.values() for host in hosts)),
        roles=tuple(roles),
        why="; ".join(f"{pattern}: {_hosts_text(hosts)}" for pattern, hosts in by_pattern.items()),
    )


def _hosts_of(cluster: Cluster, play: Play, target: TargetHost | None) -> tuple[str, ...]:
    pattern = _with_target(play.pattern, target)
    active = not play.needs or bool(cluster.groups.get(play.needs))
    if play.others_of:
        active = target is not None and (target.old or target.node) in cluster.groups.get(play.others_of, ())
    hosts = cluster.select(pattern) if active and _can_match(cluster, pattern, target) else ()
    return tuple(host for host in hosts if host == target.node) if target and play.narrowed else hosts


def _with_target(pattern: str, target: TargetHost | None) -> str:
    return pattern.replace(content.THE_NODE, target.old or target.node) if target else pattern


def _concerns_target(cluster: Cluster, phase: Phase, target: TargetHost) -> bool:
    """Return whether a phase has work for the target; in a phase of `site.yml`, plays for other hosts do not count."""
    in_site = phase.playbook in {site_phase.playbook for site_phase in load_phases(content.playbooks_dir())}
    narrowed = [play for play in phase.plays if play.narrowed]
    return not in_site or not narrowed or any(_hosts_of(cluster, play, target) for play in narrowed)


def _can_match(cluster: Cluster, pattern: str, target: TargetHost | None) -> bool:
    """Return whether a pattern contains a name of this inventory: Ansible warns about each unknown name."""
    names = {*cluster.groups, *((target.node, target.old) if target else ())}
    return not names.isdisjoint(groups_in(pattern)) or not pattern.replace("_", "").isalnum()


def _hosts_text(hosts: tuple[str, ...]) -> str:
    shown = ", ".join(hosts[:_NAMES_SHOWN])
    more = ", …" if len(hosts) > _NAMES_SHOWN else ""
    return f"{shown}{more} ({len(hosts)} host{'s' if len(hosts) != 1 else ''})"


def _uncovered(cluster: Cluster, playbook: str, target: TargetHost | None) -> tuple[str, ...]:
    """Return the groups with hosts (of a day-2 playbook: with its target) that no phase uses."""
    if playbook != SITE and target is None:
        return ()
    phases = [phase for phase in load_phases(content.playbooks_dir()) if phase.name not in _CHECKING_PHASES]
    used = {name for phase in phases for pattern in phase.patterns for name in groups_in(pattern)}
    unused = {name: cluster.groups.get(name, ()) for name in load_groups() if name not in used and name not in _GROUPS_WITHOUT_SERVICE}
    return tuple(name for name, hosts in unused.items() if (target.node in hosts if target else hosts))
