"""Filters for a control plane's API server, and the one that new hosts join at. kubeadm writes both once."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


def kubespray_cluster_info(text: str, addresses: Sequence[str]) -> str:
    """Return the kubeconfig of `cluster-info` with the first control plane as server; empty if it is correct or has a host name.

    kubeadm writes the address of the host that was first when the cluster was created, and nothing updates it: `kubeadm join` of every new
    host contacts it (docs/operations/nodes.md of Kubespray, "Edit cluster-info configmap"). A host name is that of a load balancer.

    Args:
        text: `data.kubeconfig` of the ConfigMap.
        addresses: The addresses of the first control plane, the preferred one first.
    """
    config = yaml.safe_load(text) or {}
    entries = [one["cluster"] for one in config.get("clusters") or () if "server" in one.get("cluster", {})]
    wrong = [entry for entry in entries if _is_address(host := urlsplit(entry["server"]).hostname or "") and host not in addresses]
    if not wrong or not addresses:
        return ""
    for entry in wrong:
        entry["server"] = f"https://{_bracketed(addresses[0])}:{urlsplit(entry['server']).port or 6443}"
    return str(yaml.safe_dump(config, sort_keys=False))


def kubespray_own_api(bound: str, port: int) -> str:
    """Return the URL of a control plane's own API server; `bound` is the address that it listens on, or the wildcard address."""
    return f"https://{'127.0.0.1' if bound in ('::', '0.0.0.0') else _bracketed(bound)}:{port}"  # noqa: S104 - nothing is bound here


def kubespray_join_patches(found: Iterable[Mapping[str, Any]], addresses: Sequence[str]) -> list[dict[str, Any]]:
    """Return the merge patches that make new hosts join at the first control plane; none for a correct address or a host name.

    Args:
        found: The ConfigMaps `cluster-info` and `kubeadm-config`.
        addresses: The addresses of the first control plane, the preferred one first.
    """
    patches = []
    for one in found:
        key, corrected = ("kubeconfig", kubespray_cluster_info) if "kubeconfig" in one["data"] else ("ClusterConfiguration", _endpoint)
        if text := corrected(one["data"][key], addresses):
            patches.append({**{name: one["metadata"][name] for name in ("namespace", "name")}, "patch": {"data": {key: text}}})
    return patches


def kubespray_node_verdicts(listed: Mapping[str, Any], nodes: Mapping[str, str], version: str) -> list[dict[str, Any]]:
    """Return a verdict for each node that is not Ready, or one for all nodes, and one for their versions.

    Args:
        listed: The result of kube_list for the kind Node.
        nodes: Host -> Node name; empty if they are the same.
        version: The version that all should have; empty = any, but all the same.
    """
    if listed["found"]["Node"] is None:
        return [_verdict("node", "unknown", expected="Ready", reason="; ".join(listed["errors"]))]
    ready = {
        one["metadata"]["name"]: any(state["status"] == "True" for state in one["status"]["conditions"]) for one in listed["found"]["Node"]
    }
    bad = []
    for host, name in ((host, name or host) for host, name in nodes.items()):
        if name not in ready:
            fix = "primus-bootstrap apply --phase kubernetes"
            bad.append(_verdict("node", "fail", host=host, expected="a Ready node", found="no node", fix=fix))
        elif not ready[name]:
            fix = f"kubectl describe node {name}; on it: journalctl -u kubelet -n 50"
            bad.append(_verdict("node", "fail", host=host, expected="Ready", found="not Ready", fix=fix))
    passed = [] if bad else [_verdict("node", "pass", expected="Ready", found=f"{sum(ready.values())} nodes are Ready")]
    versions = sorted({one["status"]["nodeInfo"]["kubeletVersion"].removeprefix("v") for one in listed["found"]["Node"]})
    equal = versions == [version] if version else len(versions) == 1
    fix = "" if equal else f"primus-bootstrap upgrade kubernetes hosts.yaml {version or 'VERSION'}, which continues an interrupted upgrade"
    words = {"expected": version or "one version", "found": ", ".join(versions) or "no node", "fix": fix}
    return [*bad, *passed, _verdict("versions", "pass" if equal else "fail", **words)]


def _verdict(check: str, verdict: str, *, host: str = "kubernetes", **words: str) -> dict[str, Any]:
    return {"check": f"kubernetes.{check}", "host": host, "verdict": verdict, "source": "roles/kubespray/meta/argument_specs.yml", **words}


def _endpoint(text: str, addresses: Sequence[str]) -> str:
    """Return kubeadm's ClusterConfiguration with this controlPlaneEndpoint; empty if it is correct or has a host name."""
    config = yaml.safe_load(text) or {}
    current = urlsplit(f"//{config.get('controlPlaneEndpoint') or ''}")
    if not addresses or not _is_address(current.hostname or "") or current.hostname in addresses:
        return ""
    config["controlPlaneEndpoint"] = f"{_bracketed(addresses[0])}:{current.port or 6443}"
    return str(yaml.safe_dump(config, sort_keys=False))


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return them by name."""
        return {one.__name__: one for one in (kubespray_cluster_info, kubespray_own_api, kubespray_join_patches, kubespray_node_verdicts)}
