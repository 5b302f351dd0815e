"""Rules about the networks of Kubernetes, which cannot be changed once the cluster runs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.inventory.ansible.addresses import parse_address
from primus_bootstrap.inventory.source.yaml_values import is_deferred, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext
    from primus_bootstrap.inventory.source.source_map import Definition

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
# Kubespray v2.31.0: https://github.com/kubernetes-sigs/kubespray/blob/v2.31.0/roles/kubespray_defaults/defaults/main/main.yml
_DEFAULTS = {
    "kube_service_addresses": "10.233.0.0/18",
    "kube_pods_subnet": "10.233.64.0/18",
    "kube_network_node_prefix": 24,
    "kubelet_max_pods": 110,
}
_SUBNETS = ("kube_service_addresses", "kube_pods_subnet", "kube_service_addresses_ipv6", "kube_pods_subnet_ipv6")
_HOST_ADDRESSES = ("ansible_host", "ip", "access_ip", "ip6", "access_ip6")


@dataclass(frozen=True, slots=True)
class _Subnet:
    """A subnet of the cluster. `definition` is None for Kubespray's default."""

    name: str
    network: IpNetwork
    definition: Definition | None

    def __str__(self) -> str:
        return f"{self.name} {self.network}" + ("" if self.definition else " (Kubespray's default)")


def bad_subnet(context: ValidationContext) -> Iterator[Problem]:
    """Report invalid subnets; kubeadm would stop at one in the middle of the installation."""
    for name in _SUBNETS:
        for definition in context.variable_index.by_name.get(name, ()):
            if is_deferred(definition.node):
                continue
            text, origin = _text(definition), definition.origin
            if _network(text) is None:
                what = f"{name}: `{text}` is not a subnet" if text else f"{name} must be a single subnet"
                yield origin.problem(what, _subnet_fix(text), "subnet")


def subnets_overlap(context: ValidationContext) -> Iterator[Problem]:
    """Report subnets that overlap each other or contain the address of a host. Kubespray's own check is incomplete."""
    subnets = _subnets(context)
    for position, one in enumerate(subnets):
        for other in subnets[position + 1 :]:
            if one.network.version == other.network.version and one.network.overlaps(other.network):
                later, earlier = (other, one) if other.definition else (one, other)
                if origin := _origin(later):
                    yield origin.problem(f"{later} overlaps {earlier}", "use subnets that do not overlap", "subnet-overlap")
    kubernetes_hosts = set(context.kubernetes_hosts)
    for subnet in subnets:
        yield from _hosts_inside(context, subnet, kubernetes_hosts)


def _hosts_inside(context: ValidationContext, subnet: _Subnet, hosts: set[str]) -> Iterator[Problem]:
    inside: dict[str, tuple[str, Definition]] = {}
    for variable in _HOST_ADDRESSES:
        for found in context.resolver.addresses(variable):
            address = parse_address(found.text)
            if found.host in hosts and address is not None and address in subnet.network:
                inside.setdefault(found.host, (f"{variable} {address}", found.definition))
    if not inside:
        return
    first, (shown, definition) = next(iter(inside.items()))
    origin = _origin(subnet) or definition.origin
    more = f" and of {len(inside) - 1} more" if len(inside) > 1 else ""
    what = f"{subnet} contains the address of a host: {shown} of {first}{more}"
    yield origin.problem(what, f"set {subnet.name} to a subnet without addresses of hosts", "subnet-overlap")


def node_prefix(context: ValidationContext) -> Iterator[Problem]:
    """Report a pod subnet with too few blocks for the nodes, or with blocks that are too small for the pods of a node."""
    nodes = dict.fromkeys((*context.groups.get("kube_control_plane", ()), *context.groups.get("kube_node", ())))
    if not nodes:
        return
    pods = next((subnet for subnet in _subnets(context) if subnet.name == "kube_pods_subnet"), None)
    prefix, prefix_origin = _number(context, "kube_network_node_prefix")
    max_pods, max_pods_origin = _number(context, "kubelet_max_pods")
    if pods is None or prefix is None or max_pods is None or pods.network.version != 4 or not 0 < prefix <= 32 or max_pods < 1:
        return
    origin = (
        prefix_origin or _origin(pods) or context.group_origin("kube_node" if context.groups.get("kube_node") else "kube_control_plane")
    )
    blocks = 2 ** (prefix - pods.network.prefixlen) if prefix >= pods.network.prefixlen else 0
    if blocks < len(nodes):
        what = f"{pods} has {blocks} blocks of /{prefix} (kube_network_node_prefix), too few for {len(nodes)} nodes"
        fix = f"set kube_pods_subnet to a subnet of at least /{max(0, prefix - (len(nodes) - 1).bit_length())}"
        yield origin.problem(what, fix, "node-prefix")
    capacity = 2 ** (32 - prefix) - 2
    if capacity < max_pods:
        origin = prefix_origin or max_pods_origin or origin
        what = (
            f"a block of /{prefix} (kube_network_node_prefix) has addresses for {max(capacity, 0)} pods, but kubelet_max_pods is {max_pods}"
        )
        fix = f"set kube_network_node_prefix to {32 - (max_pods + 1).bit_length()} or less, or lower kubelet_max_pods"
        yield origin.problem(what, fix, "node-prefix")


def _number(context: ValidationContext, name: str) -> tuple[int | None, Origin | None]:
    """Return a number of the cluster and where it is set; (None, None) if only a run can resolve it."""
    definition = _for_cluster(context, name)
    if definition is None:
        return int(str(_DEFAULTS[name])), None
    text = _text(definition)
    return (int(text), definition.origin) if text.isascii() and text.isdigit() and len(text) < 6 else (None, None)


def bad_number(context: ValidationContext) -> Iterator[Problem]:
    """Report numbers of Kubespray that are out of range. No argument spec of this project declares them."""
    for name, least, most in (("kube_network_node_prefix", 1, 32), ("kubelet_max_pods", 1, 99_999)):
        for definition in context.variable_index.by_name.get(name, ()):
            node, origin = definition.node, definition.origin
            if is_deferred(node):
                continue
            value = value_of(node)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                what = f"{name} must be a whole number from {least} to {most}"
                yield origin.problem(what, "write the number without quotes", "type")


def _subnets(context: ValidationContext) -> list[_Subnet]:
    """Return the subnets of the Kubernetes cluster, without templates and invalid ones."""
    if not context.kubernetes_hosts:
        return []
    found = []
    for name in _SUBNETS:
        definition = _for_cluster(context, name)
        text = _text(definition) if definition else str(_DEFAULTS.get(name, ""))
        if network := _network(text):
            found.append(_Subnet(name, network, definition))
    return found


def _for_cluster(context: ValidationContext, name: str) -> Definition | None:
    """Return the definition that is effective for the first host of the Kubernetes cluster."""
    return context.variable_index.by_host(name).get(context.kubernetes_hosts[0])


def _text(definition: Definition) -> str:
    return str(definition.node.value) if isinstance(definition.node, yaml.ScalarNode) else ""


def _network(text: str) -> IpNetwork | None:
    try:
        return ipaddress.ip_network(text) if "/" in text else None
    except ValueError:
        return None


def _subnet_fix(text: str) -> str:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        return "write a subnet such as 10.233.64.0/18"
    return f"write {network}" if "/" in text else f"add the prefix length, for example {text}/16"


def _origin(subnet: _Subnet) -> Origin | None:
    return subnet.definition.origin if subnet.definition else None


RULES: tuple[Rule, ...] = (bad_subnet, subnets_overlap, node_prefix, bad_number)
