"""Check which hosts the verbs `node add`, `node remove` and `node replace` may change. Only `apply` changes hosts that others depend on.

The exception is the group redis with automatic failover: its hosts know each other through the sentinels.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.schema.groups import load_groups
from primus_bootstrap.inventory.schema.names import nearest_group
from primus_bootstrap.inventory.source.yaml_values import is_vaulted, value_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Any

    import yaml

    from primus_bootstrap.inventory.cluster import Cluster

# Groups whose hosts can be added and removed without a change on other hosts, except Slurm's controllers.
WORKER_GROUPS = frozenset(
    {"gpu_node", "container_host", "packet_filter", "spare", "juicefs_client", "slurm_node", "slurm_login", "workload_node"}
    | {"training_backend"}
    | {"kube_node", "kube_infra_node", "k8s_cluster", "no_floating"}
)
# From this number of hosts on, the group redis has sentinels: roles/redis/vars/main.yml, _redis_failover.
FAILOVER_HOSTS = 3
# Variables of one machine that its replacement does not inherit.
_MACHINE_VARIABLES = re.compile(
    r"ansible_host|ansible_ssh_host|host_key|ip6?|access_ip6?|etcd_member_name|(.*_)?(serial|serial_number|asset_tag|mac_address|hostid)"
)


def serving_groups(names: Sequence[str]) -> tuple[str, ...]:
    """Return those of the groups whose hosts other hosts depend on."""
    return tuple(name for name in names if name in load_groups() and name not in WORKER_GROUPS)


def check_joining(groups: Sequence[str], known: Collection[str]) -> None:
    """Check that a new host can be added to these groups. `known` are the groups of hosts.yaml.

    Raises:
        UsageError: No group is given, or one does not exist.
        PlanError: Other hosts depend on the hosts of a group.
    """
    if not groups:
        raise UsageError("no group is given; a host without a group gets no role", fix="--groups gpu_node,…, or --like HOST")
    for name in groups:
        if name not in load_groups() and name not in known:
            near = nearest_group(name) or nearest(name, known)
            fix = f"did you mean {near}?" if near else "list the groups: primus-bootstrap schema --groups"
            raise UsageError(f"no such group: {name}", fix=fix)
    _refuse_serving([name for name in serving_groups(groups) if name != "redis"])


def check_grown(cluster: Cluster, host: str) -> None:
    """Check that a host that joins the group redis finds sentinels there. `cluster` already has the host.

    Raises:
        PlanError: The group had no automatic failover before, so its other hosts must change.
    """
    if "redis" in _groups_of(cluster, host) and len(cluster.groups["redis"]) <= FAILOVER_HOSTS:
        _refuse_serving(["redis"])


def _refuse_serving(serving: Sequence[str]) -> None:
    if serving:
        raise PlanError(
            f"other hosts depend on the hosts of {', '.join(serving)} (a quorum, an address in their configuration)",
            fix="add the host to hosts.yaml yourself, then: primus-bootstrap apply",
        )


def check_leaving(cluster: Cluster, host: str, *, joining: int = 0) -> None:
    """Check that a host can be removed. `joining` hosts take its place in the same run.

    Raises:
        PlanError: Other hosts depend on it. The fix says what to do first.
    """
    left = len(set(cluster.groups.get("redis", ())) - {host}) + joining
    serving = tuple(name for name in serving_groups(_groups_of(cluster, host)) if name != "redis" or left < FAILOVER_HOSTS)
    if not serving:
        return
    if serving == ("redis",) and len(cluster.groups["redis"]) >= FAILOVER_HOSTS:
        what = (
            f"{host} is one of {FAILOVER_HOSTS} hosts of redis; with {left} left, nothing replaces a failed primary of the metadata engine"
        )
        add = f"primus-bootstrap node add hosts.yaml NEW --like {host}"
        raise PlanError(what, fix=f"primus-bootstrap node replace hosts.yaml {host} NEW; or add a host first: {add}")
    last_of = ", ".join(name for name in serving if len(cluster.groups[name]) == 1)
    if last_of:
        what = f"{host} is the only host of {last_of}, which the cluster needs"
        fix = (
            f"add another host to {last_of}, apply, move the data (see the guide of that service), delete {host} from {last_of}, "
            "then repeat the command"
        )
    else:
        what = f"other hosts depend on {host}: it is in {', '.join(serving)}"
        fix = f"delete {host} from {', '.join(serving)} in hosts.yaml, apply, then repeat the command (keep an odd number of etcd hosts)"
        if {"etcd", "kube_control_plane"} & set(serving):
            # Kubespray removes the member, and needs the host in its groups for that.
            command = f"ansible-playbook -i {cluster.path} playbooks/day2/node/kubernetes.yml -e node={host}"
            fix = f"{command} (docs/kubernetes-day2.md), then {fix}"
    raise PlanError(what, fix=fix)


def check_reinstalled(cluster: Cluster, host: str) -> None:
    """Check that a reinstalled host can be added again like a worker, without data to restore.

    Raises:
        PlanError: Other hosts depend on it.
    """
    copied = ("redis",) if len(cluster.groups.get("redis", ())) >= FAILOVER_HOSTS else ()  # from the primary
    if serving := [name for name in serving_groups(_groups_of(cluster, host)) if name not in copied]:
        what = f"other hosts depend on {host} ({', '.join(serving)}), and its data was lost with the old system"
        raise PlanError(what, fix="restore its data (see the guide of that service), then: primus-bootstrap apply")


def _groups_of(cluster: Cluster, host: str) -> tuple[str, ...]:
    return next(one.groups for one in cluster.hosts if one.name == host)


def inherited(variables: Mapping[str, yaml.Node]) -> dict[str, Any]:
    """Return the variables that a host's replacement inherits: all but addresses, host key and serial numbers.

    Raises:
        PlanError: One of them is encrypted with Vault.
    """
    copied = {name: node for name, node in variables.items() if not _MACHINE_VARIABLES.fullmatch(name)}
    if vaulted := [name for name, node in copied.items() if is_vaulted(node)]:
        fix = "move them to the `vars:` of a group of both hosts, then repeat the command"
        raise PlanError(f"encrypted variables of one host cannot be copied: {', '.join(vaulted)}", fix=fix)
    return {name: value_of(node) for name, node in copied.items()}
