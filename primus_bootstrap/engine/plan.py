"""hosts.yaml and the playbooks in, a `Plan` out; contacts no host and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.engine.plan_values import Plan, Step
from primus_bootstrap.engine.playbooks import SITE, groups_in, load_phases
from primus_bootstrap.inventory.ansible.groups import load_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.engine.playbooks import Phase, Play
    from primus_bootstrap.inventory.cluster import Cluster

# Known groups that only collect others, name a way to hosts, or mark hosts for roles that treat them in their own way: no service is
# missing where no phase reads them.
_COLLECTING_GROUPS = ("k8s_cluster", "bastion", "spare")
# These look at hosts and bring no service up, whatever groups their plays name.
_CHECKING_PHASES = ("preflight", "verify")
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class TargetHost:
    """The host that a day-2 playbook is about: `node` of its extra variables, and `old` where `node` takes its place."""

    node: str
    old: str = ""


def make_plan(  # noqa: PLR0913 - the ways in which a run is narrowed
    cluster: Cluster,
    *,
    playbook: str = SITE,
    phases: Sequence[str] = (),
    start: str | None = None,
    limit: str | None = None,
    subject: TargetHost | None = None,
) -> Plan:
    """Bind the phases of a playbook to the hosts of one cluster.

    Args:
        cluster: the validated inventory.
        playbook: the file below `playbooks/` whose phases these are.
        phases: only these, still in the order of the playbook; empty means all.
        start: leave out what comes before this phase.
        limit: an Ansible host pattern; hosts outside it are left out.
        subject: the host that a day-2 playbook is about.

    Raises:
        PlanError: a phase that does not exist, a limit that matches no host, or nothing left to do.
    """
    known = load_phases(content.playbooks_dir(), playbook)
    chosen = _choose(known, phases, start)
    allowed = _limited(cluster, limit)
    steps = tuple(step for phase in chosen if (step := _bind(cluster, phase, allowed, subject)))
    if not steps:
        names = ", ".join(phase.name for phase in chosen)
        raise PlanError(f"nothing to do: no host of this plan is in a group that these phases read: {names}", fix=_empty_fix(chosen))
    return Plan(cluster=cluster.name, inventory=str(cluster.path), steps=steps, uncovered=_uncovered(cluster, playbook, subject))


def _choose(known: tuple[Phase, ...], phases: Sequence[str], start: str | None) -> tuple[Phase, ...]:
    names = [phase.name for phase in known]
    for name in (*phases, *((start,) if start else ())):
        if name not in names:
            near = nearest(name, names)
            hint = f"did you mean {near}? " if near else ""
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
        near = nearest(limit, names)
        hint = f"did you mean {near}?" if near else "name hosts or groups of hosts.yaml: gpu1, gpu[001:004], gpu_node:!gpu7"
        raise PlanError(f"the limit matches no host: {limit}", fix=hint)
    return hosts


def _bind(cluster: Cluster, phase: Phase, allowed: frozenset[str] | None, subject: TargetHost | None) -> Step | None:
    found: dict[str, tuple[str, ...]] = {}
    roles: dict[str, None] = {}
    for play in phase.plays:
        hosts = _hosts_of(cluster, play, subject)
        if kept := hosts if allowed is None else tuple(host for host in hosts if host in allowed):
            found[_named(play.pattern, subject)] = kept
            roles |= dict.fromkeys(play.roles)
    if not found or (subject and not _concerns(cluster, phase, subject)):
        return None
    return Step(
        phase=phase.name,
        playbook=phase.playbook,
        hosts=tuple(dict.fromkeys(host for hosts in found.values() for host in hosts)),
        roles=tuple(roles),
        why="; ".join(f"{pattern}: {_few(hosts)}" for pattern, hosts in found.items()),
    )


def _hosts_of(cluster: Cluster, play: Play, subject: TargetHost | None) -> tuple[str, ...]:
    pattern = _named(play.pattern, subject)
    served = not play.needs or bool(cluster.groups.get(play.needs))
    hosts = cluster.select(pattern) if served and _can_match(cluster, pattern, subject) else ()
    return tuple(host for host in hosts if host == subject.node) if subject and play.narrowed else hosts


def _named(pattern: str, subject: TargetHost | None) -> str:
    return pattern.replace(content.THE_NODE, subject.old or subject.node) if subject else pattern


def _concerns(cluster: Cluster, phase: Phase, subject: TargetHost) -> bool:
    """Tell whether a phase has anything to do with the host: in those of `site.yml`, plays for others follow from its own ones."""
    of_site = phase.playbook in {one.playbook for one in load_phases(content.playbooks_dir())}
    narrowed = [play for play in phase.plays if play.narrowed]
    return not of_site or not narrowed or any(_hosts_of(cluster, play, subject) for play in narrowed)


def _can_match(cluster: Cluster, pattern: str, subject: TargetHost | None) -> bool:
    """Tell whether a pattern names anything of this inventory: Ansible warns about each name that it does not know."""
    named = {*cluster.groups, *((subject.node, subject.old) if subject else ())}
    return not named.isdisjoint(groups_in(pattern)) or not pattern.replace("_", "").isalnum()


def _few(hosts: tuple[str, ...]) -> str:
    shown = ", ".join(hosts[:_NAMES_SHOWN])
    more = ", …" if len(hosts) > _NAMES_SHOWN else ""
    return f"{shown}{more} ({len(hosts)} host{'s' if len(hosts) != 1 else ''})"


def _uncovered(cluster: Cluster, playbook: str, subject: TargetHost | None) -> tuple[str, ...]:
    """Return the groups with hosts, or with the subject of a day-2 playbook, that no phase reads."""
    if playbook != SITE and subject is None:
        return ()
    phases = [phase for phase in load_phases(content.playbooks_dir()) if phase.name not in _CHECKING_PHASES]
    read = {name for phase in phases for pattern in phase.patterns for name in groups_in(pattern)}
    members = {name: cluster.groups.get(name, ()) for name in load_groups() if name not in read and name not in _COLLECTING_GROUPS}
    return tuple(name for name, hosts in members.items() if (subject.node in hosts if subject else hosts))


def _empty_fix(chosen: tuple[Phase, ...]) -> str:
    groups = dict.fromkeys(name for phase in chosen for pattern in phase.patterns for name in groups_in(pattern))
    return f"put hosts into one of these groups: {', '.join(groups)}"
