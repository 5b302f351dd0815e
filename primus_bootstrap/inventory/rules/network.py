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
    "kube_service_addresses_ipv6": "fd85:ee78:d8a6:8607::1000/116",
    "kube_pods_subnet_ipv6": "fd85:ee78:d8a6:8607::1:0000/112",
}
_NUMBERS = (("kube_network_node_prefix", 1, 32), ("kube_network_node_prefix_ipv6", 1, 128), ("kubelet_max_pods", 1, 99_999))
_HOST_ADDRESSES = ("ansible_host", "ip", "access_ip", "ip6", "access_ip6")


@dataclass(frozen=True, slots=True)
class Subnet:
    """A subnet of the cluster. `definition` is None for Kubespray's default."""

    name: str
    network: IpNetwork
    definition: Definition | None

    @property
    def origin(self) -> Origin | None:
        """Where the subnet is set."""
        return self.definition.origin if self.definition else None

    def __str__(self) -> str:
        """Return the name and the subnet, as messages show them."""
        return f"{self.name} {self.network}" + ("" if self.definition else " (Kubespray's default)")


def bad_subnet(context: ValidationContext) -> Iterator[Problem]:
    """Report invalid subnets; kubeadm would stop at one in the middle of the installation."""
    for name in _DEFAULTS:
        for definition in context.variable_index.by_name.get(name, ()):
            if is_deferred(definition.node):
                continue
            text, origin = _text(definition), definition.origin
            if _network(text) is None:
                what = f"{name}: `{text}` is not a subnet" if text else f"{name} must be a single subnet"
                yield origin.problem(what, _subnet_fix(text), "subnet")


def subnets_overlap(context: ValidationContext) -> Iterator[Problem]:
    """Report subnets that overlap each other or contain the address of a host. Kubespray's own check is incomplete."""
    subnets = cluster_subnets(context)
    for position, one in enumerate(subnets):
        for other in subnets[position + 1 :]:
            if one.network.version == other.network.version and one.network.overlaps(other.network):
                later, earlier = (other, one) if other.definition else (one, other)
                if origin := later.origin:
                    yield origin.problem(f"{later} overlaps {earlier}", "use subnets that do not overlap", "subnet-overlap")
    kubernetes_hosts = set(context.kubernetes_hosts)
    for subnet in subnets:
        yield from _hosts_inside(context, subnet, kubernetes_hosts)


def _hosts_inside(context: ValidationContext, subnet: Subnet, hosts: set[str]) -> Iterator[Problem]:
    inside: dict[str, tuple[str, Definition]] = {}
    for variable in _HOST_ADDRESSES:
        for found in context.resolver.addresses(variable):
            address = parse_address(found.text)
            if found.host in hosts and address is not None and address in subnet.network:
                inside.setdefault(found.host, (f"{variable} {address}", found.definition))
    if not inside:
        return
    first, (shown, definition) = next(iter(inside.items()))
    origin = subnet.origin or definition.origin
    more = f" and of {len(inside) - 1} more" if len(inside) > 1 else ""
    what = f"{subnet} contains the address of a host: {shown} of {first}{more}"
    yield origin.problem(what, f"set {subnet.name} to a subnet without addresses of hosts", "subnet-overlap")


def bad_number(context: ValidationContext) -> Iterator[Problem]:
    """Report numbers of Kubespray that are out of range. No argument spec of this project declares them."""
    for name, least, most in _NUMBERS:
        for definition in context.variable_index.by_name.get(name, ()):
            node, origin = definition.node, definition.origin
            if is_deferred(node):
                continue
            value = value_of(node)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                what = f"{name} must be a whole number from {least} to {most}"
                yield origin.problem(what, "write the number without quotes", "type")


def cluster_subnets(context: ValidationContext) -> list[Subnet]:
    """Return the subnets of the Kubernetes cluster for the IP versions that it uses, without templates and invalid ones."""
    if not context.kubernetes_hosts:
        return []
    found, versions = [], ip_versions(context)
    for name, default in _DEFAULTS.items():
        definition = _for_cluster(context, name)
        network = _network(_text(definition) if definition else default)
        if network and network.version in versions:
            found.append(Subnet(name, network, definition))
    return found


def ip_versions(context: ValidationContext) -> frozenset[int]:
    """Return the IP versions of pods and services: 4, 6 or both."""
    values = context.resolved_values(context.kubernetes_hosts[0], ("ipv4_stack", "ipv6_stack", "enable_dual_stack_networks"))
    second = values.get("ipv6_stack", values.get("enable_dual_stack_networks", False))
    return frozenset({4} if values.get("ipv4_stack", True) else ()) | frozenset({6} if second else ())


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


RULES: tuple[Rule, ...] = (bad_subnet, subnets_overlap, bad_number)
