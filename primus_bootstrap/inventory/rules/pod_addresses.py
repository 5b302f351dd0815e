"""Rules about the addresses of pods: whether the nodes and their pods fit into the pod subnet, by the network plug-in in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.rules.group_membership import is_existing_kubernetes
from primus_bootstrap.inventory.rules.network import cluster_subnets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext
    from primus_bootstrap.inventory.rules.network import Subnet

# Kubespray v2.31.0: roles/kubespray_defaults/defaults/main/main.yml, roles/kubernetes/node/defaults/main.yml and
# roles/network_plugin/calico_defaults/defaults/main.yml of https://github.com/kubernetes-sigs/kubespray/tree/v2.31.0
_DEFAULTS: Mapping[str, Any] = {
    "kube_network_plugin": "calico",
    "kube_network_node_prefix": 24,
    "kube_network_node_prefix_ipv6": 120,
    "kubelet_max_pods": 110,
    "calico_pool_blocksize": 26,
    "calico_pool_blocksize_ipv6": 122,
    "calico_ipam_strictaffinity": False,
    "calico_ipam_host_local": False,
}
_POD_SUBNETS = {
    "kube_pods_subnet": ("kube_network_node_prefix", "calico_pool_blocksize"),
    "kube_pods_subnet_ipv6": ("kube_network_node_prefix_ipv6", "calico_pool_blocksize_ipv6"),
}


def node_blocks(context: ValidationContext) -> Iterator[Problem]:
    """Report a pod subnet that cannot hold the nodes.

    Kubernetes gives each node one block of kube_network_node_prefix. Calico gives out smaller blocks by itself, and nodes without a block
    borrow addresses unless strict affinity forbids it. Its pool has at least one block: https://docs.tigera.io/calico/latest/reference/resources/ippool#block-sizes.
    """
    count = len(_nodes(context))
    if not count or is_existing_kubernetes(context):
        return
    values = _values(context)
    for subnet in cluster_subnets(context):
        if subnet.name not in _POD_SUBNETS:
            continue
        node_prefix, calico_blocks = _POD_SUBNETS[subnet.name]
        if not _calico_assigns(values):
            yield from _too_few_blocks(context, subnet, node_prefix, _number(values, node_prefix), count)
        elif values["calico_ipam_strictaffinity"] is True:
            yield from _too_few_blocks(context, subnet, calico_blocks, _number(values, calico_blocks), count)
        elif _is_below_one_block(values, calico_blocks, subnet):
            what = f"{subnet} is smaller than one of Calico's blocks, a /{values[calico_blocks]} ({calico_blocks})"
            yield _origin(context, subnet).problem(what, _larger(subnet, values[calico_blocks], count), "node-prefix")
        elif subnet.network.num_addresses < count:
            what = f"{subnet} has {subnet.network.num_addresses} addresses, too few for {count} nodes"
            yield _origin(context, subnet).problem(what, _larger(subnet, subnet.network.max_prefixlen, count), "node-prefix")


def pods_of_a_node(context: ValidationContext) -> Iterator[Problem]:
    """Report blocks of nodes with fewer addresses than a node may have pods. Calico gives a node further blocks."""
    if not _nodes(context) or is_existing_kubernetes(context):
        return
    values = _values(context)
    subnet = next((one for one in cluster_subnets(context) if one.name == "kube_pods_subnet"), None)
    prefix, pods = _number(values, "kube_network_node_prefix"), _number(values, "kubelet_max_pods")
    if subnet is None or subnet.network.version != 4 or prefix is None or prefix > 32 or pods is None:
        return
    capacity = max(2 ** (32 - prefix) - 2, 0)
    if capacity >= pods or _calico_assigns(values) or values["kube_network_plugin"] == "none":
        return
    fitting = 32 - (pods + 1).bit_length()
    what = f"a block of /{prefix} (kube_network_node_prefix) has addresses for {capacity} pods, but kubelet_max_pods is {pods}"
    fix = f"set kube_network_node_prefix to {fitting} or less"
    if _blocks(subnet, fitting) < len(_nodes(context)):
        fix += f" and {_larger(subnet, fitting, len(_nodes(context))).removeprefix('set ')}"
    origins = (_set_at(context, name) for name in ("kube_network_node_prefix", "kubelet_max_pods"))
    origin = next((one for one in origins if one), None) or _origin(context, subnet)
    yield origin.problem(what, f"{fix}, or lower kubelet_max_pods to {capacity}" if capacity else fix, "node-prefix")


def _too_few_blocks(context: ValidationContext, subnet: Subnet, name: str, prefix: int | None, count: int) -> Iterator[Problem]:
    if prefix is None or prefix > subnet.network.max_prefixlen or _blocks(subnet, prefix) >= count:
        return
    what = f"{subnet} has {_blocks(subnet, prefix)} blocks of /{prefix} ({name}), too few for {count} nodes"
    origin = _set_at(context, name) or _origin(context, subnet)
    yield origin.problem(what, _larger(subnet, prefix, count), "node-prefix")


def _is_below_one_block(values: Mapping[str, Any], name: str, subnet: Subnet) -> bool:
    prefix = _number(values, name)
    return prefix is not None and prefix < subnet.network.prefixlen


def _larger(subnet: Subnet, prefix: int, count: int) -> str:
    return f"set {subnet.name} to a subnet of at least /{max(0, prefix - (count - 1).bit_length())}"


def _blocks(subnet: Subnet, prefix: int) -> int:
    """Return how many blocks a subnet has."""
    return int(2 ** (prefix - subnet.network.prefixlen)) if prefix >= subnet.network.prefixlen else 0


def _calico_assigns(values: Mapping[str, Any]) -> bool:
    """Return whether Calico gives blocks to nodes, and not Kubernetes."""
    return values["kube_network_plugin"] == "calico" and values["calico_ipam_host_local"] is not True


def _nodes(context: ValidationContext) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*context.groups.get("kube_control_plane", ()), *context.groups.get("kube_node", ()))))


def _values(context: ValidationContext) -> dict[str, Any]:
    """Return the settings of the first host; a setting that only a run can resolve is None."""
    host = context.kubernetes_hosts[0]
    unresolved = {name: None for name in _DEFAULTS if host in context.variable_index.by_host(name)}
    return {**_DEFAULTS, **unresolved, **context.resolved_values(host, _DEFAULTS)}


def _number(values: Mapping[str, Any], name: str) -> int | None:
    """Return a number; None if only a run can resolve it, or it is none."""
    value = values[name]
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _set_at(context: ValidationContext, name: str) -> Origin | None:
    return context.variable_index.origin(context.kubernetes_hosts[0], name)


def _origin(context: ValidationContext, subnet: Subnet) -> Origin:
    return subnet.origin or context.group_origin("kube_node" if context.groups.get("kube_node") else "kube_control_plane")


RULES: tuple[Rule, ...] = (node_blocks, pods_of_a_node)
