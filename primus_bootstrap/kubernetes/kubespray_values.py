"""What Kubespray is told beside hosts.yaml, each value with its reason: one generated folder of group_vars.

Kubespray reads hosts.yaml as it is, so a variable of its own that is set there anywhere is left alone. The rest is chosen here for a
cluster that trains, in place of defaults that are made for small ones. A value is written as data, a number as a number: its Ansible is
2.18, where a template that yields a number is a text.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError
from primus_bootstrap.inventory.ansible.groups import load_kubespray_variables
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.inventory.rules.kubernetes import FIXED
from primus_bootstrap.inventory.schema.specs import load_options

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
    """One variable of Kubespray. `source` is who sets it, `reason` why; `group` is the file of group_vars that it goes to."""

    name: str
    value: Json
    source: str
    reason: str
    group: str = "all"

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`."""
        return asdict(self)


def chosen_values(cluster: Cluster, folder: Path) -> tuple[Value, ...]:
    """Return what we tell Kubespray; `folder` is the cluster's own for it, where kubeconfig, secrets and downloads go."""
    nodes = len(dict.fromkeys((*cluster.groups.get("kube_control_plane", ()), *cluster.groups.get("kube_node", ()))))
    asked = (*_fixed(folder), *_base(folder), *_data_plane(cluster), *_api(cluster), *_size(nodes), *_hosts(cluster), *_drain(cluster))
    return tuple(value for value in asked if value.name in FIXED or value.name not in cluster.stated)


def _value(name: str, value: Json, reason: str, group: str = "all") -> Value:
    return Value(name, value, _CHOSEN, reason, group)


def _fixed(folder: Path) -> Iterator[Value]:
    yield _value(
        "kubeconfig_localhost", value=True, reason="the administrator's kubeconfig comes to the controller: charts are installed from there"
    )
    yield _value("artifacts_dir", str(folder / "artifacts"), "where kubernetes_kubeconfig looks for it")
    yield _value("credentials_dir", str(folder / "credentials"), "Kubespray's own secrets stay in the cluster's state folder: back it up")


def _base(folder: Path) -> Iterator[Value]:
    release = load_release()
    yield _value(
        "kube_version",
        release.newest,
        f"the newest that {release.version} installs; write it into hosts.yaml, so that nothing else moves it",
    )
    yield _value("container_manager", "containerd", "in all, so that etcd hosts see it as well")
    yield _value("kube_network_plugin", "calico", "Kubespray's default, the one that its own tests cover best")
    yield _value("kube_service_addresses", "10.233.0.0/18", "Kubespray's default, written down because it can never change")
    yield _value("kube_pods_subnet", "10.233.64.0/18", "Kubespray's default, written down because it can never change")
    yield _value("kube_network_node_prefix", 24, "Kubespray's default, written down because it can never change")
    yield _value("dns_domain", "cluster.local", "Kubespray would take cluster_name, and charts expect this one")
    yield _value("kube_proxy_mode", "nftables", "ipvs, Kubespray's default, is deprecated since Kubernetes 1.35 (KEP-5495)")
    yield _value("enable_nodelocaldns", value=True, reason="a cache of names on every node: a job's start asks for thousands at once")
    yield _value("etcd_quota_backend_bytes", "8589934592", "8 GiB, the most that etcd advises; 2 GiB get tight with many jobs and pods")
    yield _value("etcd_metrics_port", 2381, "etcd's own figures without a client certificate, for the monitoring")
    yield _value("auto_renew_certificates", value=True, reason="certificates of the control plane live a year: a timer renews them")
    yield _value("flush_iptables", value=False, reason="at remove and reset; true locks SSH out of hosts with a firewall of their own")
    yield _value("reset_restart_network", value=False, reason="at remove and reset; a restart takes bonds and RDMA ports down")
    yield _value("local_release_dir", "/var/cache/kubespray", "not /tmp: downloads outlive a reboot")
    yield _value("download_cache_dir", str(folder / "downloads"), "not /tmp: nobody else can put a file there")


def _data_plane(cluster: Cluster) -> Iterator[Value]:
    """Calico's nftables mode is made to go with kube-proxy's: https://docs.tigera.io/calico/latest/getting-started/kubernetes/nftables."""
    ours = {"kube_proxy_mode": "nftables", "kube_network_plugin": "calico"}
    if all(name not in cluster.stated or _known(cluster, name) == value for name, value in ours.items()):
        yield _value("calico_nftable_mode", "Enabled", "the mode of kube-proxy, which Calico's iptables mode is not made to go with")


def _api(cluster: Cluster) -> Iterator[Value]:
    outside = "loadbalancer_apiserver" in cluster.stated
    yield _value(
        "loadbalancer_apiserver_localhost",
        not outside,
        "loadbalancer_apiserver is set: all go there" if outside else "a proxy on every worker reaches any control plane that lives",
    )
    yield _value("kubernetes_audit", value=True, reason="who changed what is written down on the control planes")
    yield _value(
        "kube_encrypt_secret_data", value=True, reason="secrets are encrypted in etcd and in its backups; the key is in credentials_dir"
    )
    if "kube_apiserver_enable_admission_plugins" not in cluster.stated:
        yield _value(
            "kube_apiserver_enable_admission_plugins", ["PodSecurity"], "Kubespray writes Pod Security's settings only where it is named"
        )
        yield _value("kube_apiserver_admission_control_config_file", value=True, reason="the same: without it they are not read")
        yield _value("kube_pod_security_use_default", value=True, reason="a default for namespaces without a label")
        yield _value(
            "kube_pod_security_default_enforce", "privileged", "RDMA, GPU and storage pods need it; a namespace's label is stricter"
        )
        yield _value("kube_pod_security_default_audit", "baseline", "what is more than that stands in the audit log")
        yield _value("kube_pod_security_default_warn", "baseline", "what is more than that is told to who creates it")


# Kubernetes' own scalability tests: https://github.com/kubernetes/kubernetes/blob/master/cluster/gce/config-test.sh (MAX_INFLIGHT by size).
_INFLIGHT = ((3000, "3000", "1000"), (1000, "1500", "500"))
_TYPHA_FROM, _RUN_ONCE_FROM = 50, 50
# Up to here the scheduler weighs every node: https://kubernetes.io/docs/concepts/scheduling-eviction/scheduler-perf-tuning/ (2026-11-23).
_WEIGHED = 100


def _size(nodes: int) -> Iterator[Value]:
    for least, all_requests, changing in _INFLIGHT:
        if nodes >= least:
            flags = {"max-requests-inflight": all_requests, "max-mutating-requests-inflight": changing}
            yield _value("kube_kubeadm_apiserver_extra_args", flags, f"{nodes} nodes; Kubernetes' own tests use these from {least} on")
            break
    if nodes > _TYPHA_FROM:
        yield _value("typha_enabled", value=True, reason=f"{nodes} nodes: above {_TYPHA_FROM} Calico reads the API through Typha")
        yield _value("typha_replicas", max(3, -(-nodes // 100)), "one for 100 nodes, three at least")
    if nodes > _RUN_ONCE_FROM:
        yield _value("download_run_once", value=True, reason=f"{nodes} nodes: fetched once and handed out")
    if nodes > _WEIGHED:
        reason = f"{nodes} nodes: it would look at some of them for each pod, and scatter a job that wants to be in few racks"
        yield _value("kube_scheduler_config_extra_opts", {"percentageOfNodesToScore": 100}, reason)


def _hosts(cluster: Cluster) -> Iterator[Value]:
    yield _value("kubelet_max_parallel_image_pulls", 4, "training images are large, and the default pulls one after the other")
    yield _value("containerd_base_runtime_spec_rlimit_nofile", 1048576, "data loaders and collectives open many files")
    if cluster.groups.get("gpu_operator"):
        line = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
        yield _value("containerd_extra_args", line, "what a GPU operator puts there survives Kubespray's next run")
    if not cluster.groups.get("gpu_node"):
        return
    if "kube_reserved" not in cluster.stated:
        yield _value("kube_reserved", value=True, reason="a share of a GPU host stays with the system", group="gpu_node")
        yield _value("kubelet_cpu_manager_policy", "static", "a training pod keeps its cores; needs reserved ones", "gpu_node")
    yield _value("kube_cpu_reserved", "2000m", "two cores of a GPU host for the system", "gpu_node")
    yield _value("kube_memory_reserved", "8Gi", "and 8 GiB", "gpu_node")
    yield _value(
        "kubelet_topology_manager_policy", "restricted", "GPUs, NICs and cores of a pod on one NUMA node, or not at all", "gpu_node"
    )


# `--timeout 0s` waits for ever and `--grace-period 0` kills at once: https://kubernetes.io/docs/reference/kubectl/generated/kubectl_drain/
_LEAST_EVICT_S, _SPARE_S = 60, 60


def _drain(cluster: Cluster) -> Iterator[Value]:
    """One setting for both drains: the role kube_drain's own, and that of Kubespray's upgrade-cluster.yml and remove-node.yml."""
    if not cluster.stated.keys().isdisjoint(("drain_timeout", "drain_grace_period")):
        return  # the second must be less than the first: whoever sets one of Kubespray's own has both
    name = "kube_drain_evict_s"
    told = max([_LEAST_EVICT_S, *_numbers(cluster, name)]) if name in cluster.stated else int(load_options()[name].default)
    yield _value("drain_timeout", f"{told}s", f"of {name}, as our own drain: so long may evictions take")
    yield _value("drain_grace_period", max(told - _SPARE_S, told // 2), f"of {name}: a pod's time to end, in place of the pod's own")


def _numbers(cluster: Cluster, name: str) -> Iterator[int]:
    """Yield what the first control plane and the first worker have; what only a run knows is left out."""
    for group in ("kube_control_plane", "kube_node"):
        for host in cluster.groups.get(group, ())[:1]:
            try:
                yield int(cluster.view.variables(host)[name])
            except (InventoryError, KeyError, ValueError, TypeError):
                continue


def all_values(cluster: Cluster, folder: Path) -> tuple[Value, ...]:
    """Return what Kubespray is told by us and by hosts.yaml, by name; secrets are not shown."""
    stated = [name for name in sorted(cluster.stated) if name in load_kubespray_variables() and not name.startswith("ansible_")]
    found = [_stated(cluster, name) for name in stated]
    return tuple(sorted((*found, *chosen_values(cluster, folder)), key=lambda value: (value.name, value.group)))


def _stated(cluster: Cluster, name: str) -> Value:
    places = cluster.stated[name]
    first = f"{places[0].file}:{places[0].line}"
    reason = first if len(places) == 1 else f"{first} and {len(places) - 1} more"
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
    return "(differs from host to host, or is known when it runs)"


def group_files(values: Sequence[Value]) -> Mapping[str, str]:
    """Return the generated folder: file name to text. Its inventory names the groups that Kubespray reads even where they are empty."""
    files = {"kubespray.yaml": _GROUPS}
    for group in dict.fromkeys(value.group for value in values):
        lines = [f"{one.name}: {json.dumps(one.value)} # {one.reason}" for one in values if one.group == group]
        files[f"group_vars/{group}.yml"] = "\n".join(("# Generated: change hosts.yaml instead.", *lines, ""))
    return files


_GROUPS = """\
# Generated. With --limit Kubespray sees k8s_cluster only where an inventory spells it out, and recovery reads the last two by name.
all:
  children:
    kube_control_plane: {}
    kube_node: {}
    etcd: {}
    k8s_cluster: {children: {kube_control_plane: {}, kube_node: {}}}
    broken_etcd: {}
    broken_kube_control_plane: {}
"""
