"""Rules about Kubernetes' networks: they cannot be changed once the cluster runs, so they are judged before."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.ansible.addresses import parse_address, resolve
from primus_bootstrap.inventory.source.yaml_values import is_template, is_vaulted, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import ValidationContext
    from primus_bootstrap.inventory.source.source_map import Definition

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
_KUBE_GROUPS = ("kube_control_plane", "kube_node", "etcd")
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
    """A subnet of the cluster; `definition` is None where Kubespray's default counts."""

    name: str
    network: IpNetwork
    definition: Definition | None

    def __str__(self) -> str:
        return f"{self.name} {self.network}" + ("" if self.definition else " (Kubespray's default)")


def bad_subnet(reading: ValidationContext) -> Iterator[Problem]:
    """Kubespray hands a subnet on as text; a wrong one stops kubeadm in the middle."""
    for name in _SUBNETS:
        for definition in reading.merged.by_name.get(name, ()):
            if is_template(definition.node) or is_vaulted(definition.node):
                continue
            text, origin = _text(definition), definition.origin
            if _network(text) is None:
                what = f"{name}: `{text}` is no subnet" if text else f"{name} must be one subnet"
                yield Problem(origin.file, origin.line, what, _subnet_fix(text), "subnet")


def subnets_overlap(reading: ValidationContext) -> Iterator[Problem]:
    """An address that belongs to two networks reaches the wrong one. Kubespray looks in one direction only and at no host."""
    subnets = _subnets(reading)
    for position, one in enumerate(subnets):
        for other in subnets[position + 1 :]:
            if one.network.version == other.network.version and one.network.overlaps(other.network):
                later, earlier = (other, one) if other.definition else (one, other)
                if origin := _origin(later):
                    yield Problem(origin.file, origin.line, f"{later} overlaps {earlier}", "give each a range of its own", "subnet-overlap")
    in_kube = {host for group in _KUBE_GROUPS for host in reading.groups.get(group, ())}
    for subnet in subnets:
        yield from _hosts_inside(reading, subnet, in_kube)


def _hosts_inside(reading: ValidationContext, subnet: _Subnet, hosts: set[str]) -> Iterator[Problem]:
    inside: dict[str, tuple[str, Definition]] = {}
    for variable in _HOST_ADDRESSES:
        for found in resolve(reading, variable).found:
            address = parse_address(found.text)
            if found.host in hosts and address is not None and address in subnet.network:
                inside.setdefault(found.host, (f"{variable} {address}", found.definition))
    if not inside:
        return
    first, (shown, definition) = next(iter(inside.items()))
    origin = _origin(subnet) or definition.origin
    more = f" and of {len(inside) - 1} more" if len(inside) > 1 else ""
    what = f"{subnet} holds the address of a host: {shown} of {first}{more}"
    yield Problem(origin.file, origin.line, what, f"move {subnet.name} to a range that no host is in", "subnet-overlap")


def node_prefix(reading: ValidationContext) -> Iterator[Problem]:
    """Every node takes one block of the pods' subnet: too few blocks leave nodes out, too small ones leave pods without address."""
    nodes = dict.fromkeys((*reading.groups.get("kube_control_plane", ()), *reading.groups.get("kube_node", ())))
    if not nodes:
        return
    pods = next((subnet for subnet in _subnets(reading) if subnet.name == "kube_pods_subnet"), None)
    prefix, at_prefix = _number(reading, "kube_network_node_prefix")
    most, at_most = _number(reading, "kubelet_max_pods")
    if pods is None or prefix is None or most is None or pods.network.version != 4 or not 0 < prefix <= 32 or most < 1:
        return
    origin = at_prefix or _origin(pods) or reading.group_origin("kube_node" if reading.groups.get("kube_node") else "kube_control_plane")
    blocks = 2 ** (prefix - pods.network.prefixlen) if prefix >= pods.network.prefixlen else 0
    if blocks < len(nodes):
        what = f"{pods} holds {blocks} blocks of /{prefix} (kube_network_node_prefix), too few for {len(nodes)} nodes"
        fix = f"widen kube_pods_subnet to at least /{max(0, prefix - (len(nodes) - 1).bit_length())}"
        yield Problem(origin.file, origin.line, what, fix, "node-prefix")
    room = 2 ** (32 - prefix) - 2
    if room < most:
        origin = at_prefix or at_most or origin
        what = f"a block of /{prefix} (kube_network_node_prefix) holds {max(room, 0)} pods, and kubelet_max_pods is {most}"
        fix = f"set kube_network_node_prefix to {32 - (most + 1).bit_length()} or less, or lower kubelet_max_pods"
        yield Problem(origin.file, origin.line, what, fix, "node-prefix")


def _number(reading: ValidationContext, name: str) -> tuple[int | None, Origin | None]:
    """Return a number that holds for the cluster and where it is written; None for both where only a run knows it."""
    found = _for_cluster(reading, name)
    if found is None:
        return int(str(_DEFAULTS[name])), None
    text = _text(found)
    return (int(text), found.origin) if text.isascii() and text.isdigit() and len(text) < 6 else (None, None)


def bad_number(reading: ValidationContext) -> Iterator[Problem]:
    """These two are Kubespray's, so no argument spec of ours judges them; it compares them as numbers."""
    for name, least, most in (("kube_network_node_prefix", 1, 32), ("kubelet_max_pods", 1, 99_999)):
        for definition in reading.merged.by_name.get(name, ()):
            node, origin = definition.node, definition.origin
            if is_template(node) or is_vaulted(node):
                continue
            value = value_of(node)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                what = f"{name} must be a whole number from {least} to {most}"
                yield Problem(origin.file, origin.line, what, "write the number without quotes", "type")


def _subnets(reading: ValidationContext) -> list[_Subnet]:
    """Return the subnets of a cluster that runs Kubernetes; what is a template or no subnet is left out."""
    if not any(reading.groups.get(group) for group in _KUBE_GROUPS):
        return []
    found = []
    for name in _SUBNETS:
        definition = _for_cluster(reading, name)
        text = _text(definition) if definition else str(_DEFAULTS.get(name, ""))
        if network := _network(text):
            found.append(_Subnet(name, network, definition))
    return found


def _for_cluster(reading: ValidationContext, name: str) -> Definition | None:
    """Return the definition that the first control-plane host, or the first of the other groups, has."""
    host = next(host for group in _KUBE_GROUPS for host in reading.groups.get(group, ()))
    return reading.merged.of(name).get(host)


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
    return f"write {network}" if "/" in text else f"add the prefix length: {text}/16"


def _origin(subnet: _Subnet) -> Origin | None:
    return subnet.definition.origin if subnet.definition else None


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (bad_subnet, subnets_overlap, node_prefix, bad_number)
