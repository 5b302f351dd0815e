"""Rules about settings that Kubespray rejects, by its own checks and by the templates that read them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.rules.group_membership import is_existing_kubernetes
from primus_bootstrap.inventory.source.yaml_values import is_deferred, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext

# Above this number of nodes, this project sets download_run_once.
RUN_ONCE_NODES = 50
# https://github.com/kubernetes-sigs/kubespray/blob/v2.31.0/roles/validate_inventory/tasks/main.yml
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "kube_network_plugin": (*("calico", "flannel", "cloud", "cilium", "cni", "kube-ovn", "kube-router", "macvlan", "custom_cni", "none"),),
    "dns_mode": ("coredns", "coredns_dual", "manual", "none"),
    "kube_proxy_mode": ("nftables", "iptables", "ipvs"),
    "cert_management": ("script", "none"),
    "resolvconf_mode": ("docker_dns", "host_resolvconf", "none"),
    "etcd_deployment_type": ("host", "docker", "kubeadm"),
    "container_manager": ("containerd", "crio", "docker"),
    "cloud_provider": ("external", ""),
    "external_cloud_provider": ("hcloud", "huaweicloud", "oci", "openstack", "vsphere", "manual", ""),
    # Providers with a key, as Kubespray's template writes it: https://kubernetes.io/docs/tasks/administer-cluster/encrypt-data/#providers
    "kube_encryption_algorithm": ("secretbox", "aescbc", "aesgcm"),
}
_BOOLEANS = ("download_run_once", "download_always_pull", "helm_enabled", "openstack_lbaas_enabled")
_OLDEST_CONTAINERD = (1, 3, 7)


@dataclass(frozen=True, slots=True)
class _Combination:
    """Settings that exclude each other. `is_wrong` reads the values by name, a default included."""

    about: str
    is_wrong: Callable[[Mapping[str, Any]], bool]
    what: str
    fix: str


_COMBINATIONS = (
    _Combination(
        "etcd_deployment_type",
        lambda v: v["etcd_deployment_type"] == "docker" and v["container_manager"] != "docker",
        "etcd_deployment_type is docker, but container_manager is {container_manager}",
        "set etcd_deployment_type: host",
    ),
    _Combination(
        "kata_containers_enabled",
        lambda v: v["kata_containers_enabled"] is True and v["container_manager"] == "docker",
        "Kata Containers do not run with docker",
        "delete kata_containers_enabled, or set container_manager: containerd",
    ),
    _Combination(
        "gvisor_enabled",
        lambda v: v["gvisor_enabled"] is True and v["container_manager"] != "containerd",
        "gVisor runs only with containerd, but container_manager is {container_manager}",
        "delete gvisor_enabled, or set container_manager: containerd",
    ),
    _Combination(
        "auto_renew_certificates",
        lambda v: v["kube_external_ca_mode"] is True and v["auto_renew_certificates"] is True,
        "auto_renew_certificates is true, but kube_external_ca_mode leaves the certificates to an authority outside the cluster",
        "set auto_renew_certificates: false",
    ),
    _Combination(
        "download_localhost",
        lambda v: v["download_localhost"] is True and v["download_run_once"] is not True,
        "download_localhost requires download_run_once",
        "set download_run_once: true",
    ),
    _Combination(
        "containerd_version",
        lambda v: v["container_manager"] == "containerd" and _is_older(v["containerd_version"], _OLDEST_CONTAINERD),
        "containerd_version {containerd_version} is too old: Kubespray installs 1.3.7 or newer",
        "delete containerd_version to install Kubespray's default",
    ),
)
_DEFAULTS: Mapping[str, Any] = {
    **{one.about: None for one in _COMBINATIONS},
    "etcd_deployment_type": "host",
    "container_manager": "containerd",
    "kube_external_ca_mode": False,
    "download_run_once": False,
}


def choices(context: ValidationContext) -> Iterator[Problem]:
    """Report values that Kubespray does not support; its run would stop at them, or a component would not start."""
    if is_existing_kubernetes(context):
        return
    for name, allowed in _CHOICES.items():
        for definition in context.variable_index.by_name.get(name, ()):
            value = None if is_deferred(definition.node) else value_of(definition.node)
            if value not in (None, *allowed):
                what = f"{name}: Kubespray does not support {value}"
                yield definition.origin.problem(what, f"choose from: {', '.join(one for one in allowed if one)}", "kubespray-choice")


def booleans(context: ValidationContext) -> Iterator[Problem]:
    """Report strings in place of booleans; to Kubespray `"false"` would be true."""
    for name in _BOOLEANS:
        for definition in context.variable_index.by_name.get(name, ()):
            if not is_deferred(definition.node) and not isinstance(value_of(definition.node), bool):
                yield definition.origin.problem(f"{name} must be true or false", "write it without quotes", "type")


def combinations(context: ValidationContext) -> Iterator[Problem]:
    """Report settings that exclude each other."""
    if is_existing_kubernetes(context) or not context.kubernetes_hosts:
        return
    host = context.kubernetes_hosts[0]
    values = {**_DEFAULTS, **context.resolved_values(host, _DEFAULTS)}
    if len(context.kubernetes_hosts) > RUN_ONCE_NODES and host not in context.variable_index.by_host("download_run_once"):
        values["download_run_once"] = True
    for one in _COMBINATIONS:
        origin = context.variable_index.origin(host, one.about)
        if origin and one.is_wrong(values):
            yield origin.problem(one.what.format(**values), one.fix, "kubespray-combination")


def registry_mirrors(context: ValidationContext) -> Iterator[Problem]:
    """Report mirrors of containerd without a part that the template of hosts.toml reads; the task would fail on every host."""
    name = "containerd_registries_mirrors"
    if is_existing_kubernetes(context):
        return
    for host, definition in {id(one): (host, one) for host, one in context.variable_index.by_host(name).items()}.values():
        value = context.resolved_values(host, (name,)).get(name)
        for number, entry in enumerate(value if isinstance(value, list) else (), 1):
            if fault := _mirror_fault(entry):
                fix = "write it as `- {prefix: docker.io, mirrors: [{host: https://mirror.example.com, capabilities: [pull, resolve]}]}`"
                yield definition.origin.problem(f"{name}: entry {number} {fault}", fix, "registry-mirrors")


def _mirror_fault(entry: Any) -> str:
    """Return what is wrong with a registry of containerd; empty if nothing is."""
    if not isinstance(entry, dict) or not entry.get("prefix"):
        return "has no prefix, the registry that it replaces"
    if not isinstance(entry.get("mirrors"), list):
        return f"({entry['prefix']}) has no list of mirrors"
    for mirror in entry["mirrors"]:
        for part in ("host", "capabilities"):
            if not isinstance(mirror, dict) or not mirror.get(part):
                return f"({entry['prefix']}) has a mirror without {part}"
    return ""


def _is_older(version: Any, least: tuple[int, ...]) -> bool:
    """Return whether a version such as 1.3.6 is older; a name such as `latest` is not."""
    numbers = re.fullmatch(r"(\d+)\.(\d+)\.(\d+).*", str(version))
    return numbers is not None and tuple(map(int, numbers.groups())) < least


RULES: tuple[Rule, ...] = (choices, booleans, combinations, registry_mirrors)
