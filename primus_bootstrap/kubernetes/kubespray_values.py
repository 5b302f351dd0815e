"""Choose Kubespray's variables that hosts.yaml does not set, each with its reason, and generate their group_vars.

The values fit a training cluster; Kubespray's defaults are for small clusters. Numbers are written as numbers: in Kubespray's
Ansible 2.18 the result of a template is a string.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError
from primus_bootstrap.inventory.rules.kubernetes import FIXED
from primus_bootstrap.inventory.rules.kubespray import RUN_ONCE_NODES
from primus_bootstrap.inventory.schema.groups import load_kubespray_variables
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.kubernetes.preflight import release_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.inventory.cluster import Cluster

Json = Any
_SECRET = re.compile(r"token|password|secret|(?<!_)key$|_key$|auth|header|mirrors", re.IGNORECASE)
_HOSTS_YAML = "hosts.yaml"
_CHOSEN = "primus-bootstrap"


@dataclass(frozen=True, slots=True)
class Value:
    """One variable of Kubespray. `source` is hosts.yaml or this project; `group` is the group_vars file."""

    name: str
    value: Json
    source: str
    reason: str
    group: str = "all"


def chosen_values(cluster: Cluster, folder: Path) -> tuple[Value, ...]:
    """Return the variables that this project sets. `folder` is the cluster's folder for kubeconfig, secrets and downloads."""
    nodes = len(dict.fromkeys((*cluster.groups.get("kube_control_plane", ()), *cluster.groups.get("kube_node", ()))))
    of_cluster = (*_data_plane(cluster), *_api(cluster), *_size(nodes), *_hosts(cluster), *_drain(cluster))
    values = (*_fixed(folder), *_base(cluster, folder), *of_cluster)
    return tuple(value for value in values if value.name in FIXED or value.name not in cluster.variable_origins)


def _value(name: str, value: Json, reason: str, group: str = "all") -> Value:
    return Value(name, value, _CHOSEN, reason, group)


def _fixed(folder: Path) -> Iterator[Value]:
    yield _value("kubeconfig_localhost", value=True, reason="copy the administrator's kubeconfig to the controller, which installs charts")
    yield _value("artifacts_dir", str(folder / "artifacts"), "the default folder of kubernetes_kubeconfig")
    yield _value("credentials_dir", str(folder / "credentials"), "Kubespray's secrets are in the cluster's state folder: back it up")


def _base(cluster: Cluster, folder: Path) -> Iterator[Value]:
    release = release_of(cluster)
    yield _value(
        "kube_version",
        release.newest,
        f"the newest version of {release.version}; set it in hosts.yaml to pin it",
    )
    yield _value("container_manager", "containerd", "set for all hosts, including etcd hosts")
    yield _value("kube_network_plugin", "calico", "Kubespray's default, which its tests cover best")
    yield _value("kube_service_addresses", "10.233.0.0/18", "Kubespray's default, pinned because it cannot change later")
    yield _value("kube_pods_subnet", "10.233.64.0/18", "Kubespray's default, pinned because it cannot change later")
    yield _value("kube_network_node_prefix", 24, "Kubespray's default, pinned because it cannot change later")
    yield _value("dns_domain", "cluster.local", "charts expect it; Kubespray's default is cluster_name")
    yield _value("kube_proxy_mode", "nftables", "ipvs, Kubespray's default, is deprecated since Kubernetes 1.35 (KEP-5495)")
    yield _value("enable_nodelocaldns", value=True, reason="a DNS cache on every node: a job makes thousands of queries when it starts")
    yield _value("etcd_quota_backend_bytes", "8589934592", "8 GiB, the maximum that etcd recommends; 2 GiB are too few for many jobs")
    yield _value("etcd_metrics_port", 2381, "etcd's metrics without a client certificate, for the monitoring")
    if "kube_external_ca_mode" in cluster.variable_origins and _known(cluster, "kube_external_ca_mode") is not False:
        yield _value("auto_renew_certificates", value=False, reason="kube_external_ca_mode is set: Kubespray cannot renew certificates")
    else:
        reason = "certificates of the control plane expire after a year: a timer renews them"
        yield _value("auto_renew_certificates", value=True, reason=reason)
    yield _value("flush_iptables", value=False, reason="for remove and reset; true blocks SSH on hosts with a firewall")
    yield _value("reset_restart_network", value=False, reason="for remove and reset; a restart takes bonds and RDMA ports down")
    yield _value("local_release_dir", "/var/cache/kubespray", "instead of /tmp: downloads stay after a reboot")
    yield _value("download_cache_dir", str(folder / "downloads"), "instead of /tmp: no other user can write there")


def _data_plane(cluster: Cluster) -> Iterator[Value]:
    """Set Calico's nftables mode with kube-proxy's: https://docs.tigera.io/calico/latest/getting-started/kubernetes/nftables."""
    ours = {"kube_proxy_mode": "nftables", "kube_network_plugin": "calico"}
    if all(name not in cluster.variable_origins or _known(cluster, name) == value for name, value in ours.items()):
        yield _value("calico_nftable_mode", "Enabled", "kube-proxy uses nftables, with which Calico's iptables mode does not work")


def _api(cluster: Cluster) -> Iterator[Value]:
    outside = "loadbalancer_apiserver" in cluster.variable_origins
    yield _value(
        "loadbalancer_apiserver_localhost",
        not outside,
        "loadbalancer_apiserver is set" if outside else "a proxy on every worker connects to a control plane that is up",
    )
    yield _value("kubernetes_audit", value=True, reason="the control planes log who changed what")
    yield _value(
        "kube_encrypt_secret_data", value=True, reason="secrets are encrypted in etcd and in its backups; the key is in credentials_dir"
    )
    if "kube_apiserver_enable_admission_plugins" not in cluster.variable_origins:
        yield _value(
            "kube_apiserver_enable_admission_plugins", ["PodSecurity"], "Kubespray writes Pod Security's settings only if it is listed"
        )
        yield _value("kube_apiserver_admission_control_config_file", value=True, reason="required for Pod Security's settings")
        yield _value("kube_pod_security_use_default", value=True, reason="the defaults of namespaces without a label")
        yield _value(
            "kube_pod_security_default_enforce", "privileged", "RDMA, GPU and storage pods need it; a namespace's label can be stricter"
        )
        yield _value("kube_pod_security_default_audit", "baseline", "violations are in the audit log")
        yield _value("kube_pod_security_default_warn", "baseline", "violations give a warning to the user")


# Kubernetes' own scalability tests: https://github.com/kubernetes/kubernetes/blob/master/cluster/gce/config-test.sh (MAX_INFLIGHT by size).
_INFLIGHT = ((3000, "3000", "1000"), (1000, "1500", "500"))
_TYPHA_FROM = 50
# The scheduler scores every node up to this number: https://kubernetes.io/docs/concepts/scheduling-eviction/scheduler-perf-tuning/.
_ALL_SCORED = 100


def _size(nodes: int) -> Iterator[Value]:
    for least, all_requests, changing in _INFLIGHT:
        if nodes >= least:
            flags = {"max-requests-inflight": all_requests, "max-mutating-requests-inflight": changing}
            yield _value(
                "kube_kubeadm_apiserver_extra_args",
                flags,
                f"{nodes} nodes; Kubernetes' scalability tests use these values from {least} nodes on",
            )
            break
    if nodes > _TYPHA_FROM:
        yield _value("typha_enabled", value=True, reason=f"{nodes} nodes: above {_TYPHA_FROM} Calico uses Typha between it and the API")
        yield _value("typha_replicas", max(3, -(-nodes // 100)), "one per 100 nodes, at least three")
    if nodes > RUN_ONCE_NODES:
        yield _value("download_run_once", value=True, reason=f"{nodes} nodes: the controller downloads files once and copies them")
    if nodes > _ALL_SCORED:
        reason = f"{nodes} nodes: by default the scheduler scores a sample, which scatters a job over racks"
        yield _value("kube_scheduler_config_extra_opts", {"percentageOfNodesToScore": 100}, reason)


def _hosts(cluster: Cluster) -> Iterator[Value]:
    yield _value("kubelet_max_parallel_image_pulls", 4, "training images are large, and the default is one at a time")
    yield _value("containerd_base_runtime_spec_rlimit_nofile", 1048576, "data loaders and collectives open many files")
    if cluster.groups.get("gpu_operator"):
        line = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
        yield _value("containerd_extra_args", line, "keeps the files of a GPU operator in Kubespray's next run")
    if not cluster.groups.get("gpu_node"):
        return
    if "kube_reserved" not in cluster.variable_origins:
        yield _value("kube_reserved", value=True, reason="reserve a part of a GPU host for the system", group="gpu_node")
        yield _value("kubelet_cpu_manager_policy", "static", "a training pod gets exclusive cores; requires kube_reserved", "gpu_node")
    yield _value("kube_cpu_reserved", "2000m", "two cores of a GPU host for the system", "gpu_node")
    yield _value("kube_memory_reserved", "8Gi", "8 GiB of a GPU host for the system", "gpu_node")
    yield _value(
        "kubelet_topology_manager_policy", "restricted", "GPUs, NICs and cores of a pod are on one NUMA node, or it is rejected", "gpu_node"
    )


# `--timeout 0s` waits without limit and `--grace-period 0` kills at once: https://kubernetes.io/docs/reference/kubectl/generated/kubectl_drain/
_LEAST_EVICT_S, _SPARE_S = 60, 60


def _drain(cluster: Cluster) -> Iterator[Value]:
    """Derive the time limits of Kubespray's drains from kube_drain_evict_s of the role kube_drain."""
    if not cluster.variable_origins.keys().isdisjoint(("drain_timeout", "drain_grace_period")):
        return  # the grace period must be less than the time-out, so the user sets both
    name = "kube_drain_evict_s"
    limit_s = max([_LEAST_EVICT_S, *_numbers(cluster, name)]) if name in cluster.variable_origins else int(load_options()[name].default)
    yield _value("drain_timeout", f"{limit_s}s", f"from {name}: the time limit of evictions")
    yield _value("drain_grace_period", max(limit_s - _SPARE_S, limit_s // 2), f"from {name}: replaces the pods' grace periods")


def _numbers(cluster: Cluster, name: str) -> Iterator[int]:
    """Yield the values of the first control plane and the first worker, except those that only a run can resolve."""
    for group in ("kube_control_plane", "kube_node"):
        for host in cluster.groups.get(group, ())[:1]:
            try:
                yield int(cluster.view.variables(host)[name])
            except (InventoryError, KeyError, ValueError, TypeError):
                continue


def all_values(cluster: Cluster, folder: Path) -> tuple[Value, ...]:
    """Return the variables that this project and hosts.yaml set, sorted by name, without secrets."""
    stated = [name for name in sorted(cluster.variable_origins) if name in load_kubespray_variables() and not name.startswith("ansible_")]
    found = [_stated(cluster, name) for name in stated]
    return tuple(sorted((*found, *chosen_values(cluster, folder)), key=lambda value: (value.name, value.group)))


def _stated(cluster: Cluster, name: str) -> Value:
    locations = cluster.variable_origins[name]
    first = f"{locations[0].file}:{locations[0].line}"
    reason = first if len(locations) == 1 else f"{first} and {len(locations) - 1} more"
    return Value(name, "(not shown)" if _SECRET.search(name) else _known(cluster, name), _HOSTS_YAML, reason, "")


def _known(cluster: Cluster, name: str) -> Json:
    for host in dict.fromkeys(
        host for group in ("kube_control_plane", "kube_node", "etcd", "all") for host in cluster.groups.get(group, ())[:1]
    ):
        variables = cluster.view.variables(host)
        if name in variables:
            try:
                return variables[name]
            except InventoryError:
                break
    return "(depends on the host, or only a run can resolve it)"


def group_files(values: Sequence[Value]) -> Mapping[str, str]:
    """Return the files of the generated inventory by name. It defines the groups that Kubespray reads even if they are empty."""
    files = {"kubespray.yaml": _GROUPS}
    for group in dict.fromkeys(value.group for value in values):
        lines = [f"{one.name}: {json.dumps(one.value)} # {one.reason}" for one in values if one.group == group]
        files[f"group_vars/{group}.yml"] = "\n".join(("# Generated: change hosts.yaml instead.", *lines, ""))
    return files


_GROUPS = """\
# Generated. With --limit Kubespray needs k8s_cluster in the inventory. The recovery playbook reads the last two groups by name.
all:
  children:
    kube_control_plane: {}
    kube_node: {}
    etcd: {}
    k8s_cluster: {children: {kube_control_plane: {}, kube_node: {}}}
    broken_etcd: {}
    broken_kube_control_plane: {}
"""
