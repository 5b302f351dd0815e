"""Which hosts day-2 verbs may bring in or take out: those that work for others' sake are brought up and moved by `apply`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.ansible.groups import load_groups
from primus_bootstrap.inventory.schema.names import nearest_group
from primus_bootstrap.inventory.source.yaml_values import is_vaulted, value_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    import yaml

    from primus_bootstrap.inventory.cluster import Cluster

# Known groups whose hosts come and go without another host's having to follow, but for Slurm's controllers.
WORKER_GROUPS = frozenset(
    {"gpu_node", "container_host", "spare", "juicefs_client", "slurm_node", "slurm_login", "workload_node"}
    | {"kube_node", "k8s_cluster", "no_floating"}
)
# What belongs to one machine and never to the next one.
_OF_ONE_MACHINE = re.compile(
    r"ansible_host|ansible_ssh_host|host_key|ip6?|access_ip6?|etcd_member_name|(.*_)?(serial|serial_number|asset_tag|mac_address|hostid)"
)


def serving_groups(names: Sequence[str]) -> tuple[str, ...]:
    """Return those of these groups whose hosts others depend on."""
    return tuple(name for name in names if name in load_groups() and name not in WORKER_GROUPS)


def check_joining(groups: Sequence[str], known: Collection[str]) -> None:
    """Refuse groups that a new host cannot join by itself; `known` are those that hosts.yaml has.

    Raises:
        PlanError: a group that nobody knows, or one that serves others.
    """
    if not groups:
        raise PlanError("no group is given, and a host in no group gets no service", fix="--groups gpu_node,…, or --like HOST")
    for name in groups:
        if name not in load_groups() and name not in known:
            near = nearest_group(name) or nearest(name, known)
            fix = f"did you mean {near}?" if near else "primus-bootstrap schema --groups lists those that mean something"
            raise PlanError(f"no such group: {name}", fix=fix)
    if serving := serving_groups(groups):
        raise PlanError(
            f"hosts of {', '.join(serving)} serve others, which must all follow (a quorum, an address in their configuration)",
            fix="write the host into hosts.yaml yourself, then: primus-bootstrap apply",
        )


def check_leaving(cluster: Cluster, host: str) -> None:
    """Refuse to lose a host that others depend on.

    Raises:
        PlanError: it serves others; with what to do first.
    """
    of_host = next(one.groups for one in cluster.hosts if one.name == host)
    serving = serving_groups(of_host)
    if not serving:
        return
    alone = [name for name in serving if len(cluster.groups[name]) == 1]
    if alone:
        what = f"{host} is the only host of {', '.join(alone)}, and the cluster cannot do without"
        fix = f"give {', '.join(alone)} another host and apply (its data: see the guide of that service), take {host} out of it, then again"
    else:
        what = f"{host} serves others: it is in {', '.join(serving)}, where members must know each other"
        fix = f"take {host} out of {', '.join(serving)} in hosts.yaml and apply, then again (etcd must keep an odd number of members)"
        if {"etcd", "kube_control_plane"} & set(serving):
            # What it leaves behind is Kubespray's to remove, while the host still stands in its groups.
            fix = f"have Kubespray take it out: playbooks/day2/node/kubernetes.yml -e node={host} (docs/kubernetes-day2.md), then {fix}"
    raise PlanError(what, fix=fix)


def check_reinstalled(cluster: Cluster, host: str) -> None:
    """Refuse to bring a serving host back as if it were a worker: what it kept is gone with its disk.

    Raises:
        PlanError: it serves others.
    """
    of_host = next(one.groups for one in cluster.hosts if one.name == host)
    if serving := serving_groups(of_host):
        what = f"{host} serves others ({', '.join(serving)}), and its data went with the old system"
        raise PlanError(what, fix="restore its data as the guide of that service says; `primus-bootstrap apply` brings it back")


def inherited(variables: Mapping[str, yaml.Node]) -> dict[str, Any]:
    """Return the variables that a host's successor takes over: not its address, key and serial numbers.

    Raises:
        PlanError: one of them is under Vault, and would have to be written down again.
    """
    kept = {name: node for name, node in variables.items() if not _OF_ONE_MACHINE.fullmatch(name)}
    if vaulted := [name for name, node in kept.items() if is_vaulted(node)]:
        fix = "move them to a group of both hosts, then the same again"
        raise PlanError(f"under Vault, and for one host alone: {', '.join(vaulted)}", fix=fix)
    return {name: value_of(node) for name, node in kept.items()}
