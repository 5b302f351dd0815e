"""Which API server is asked: by a control plane itself, and by hosts that join. kubeadm writes that once, and Kubespray never again."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


def kubespray_cluster_info(text: str, addresses: Sequence[str]) -> str:
    """Return that kubeconfig with the first control plane as server; nothing where it is right, or where a name stands.

    kubeadm writes the address of the host that was the first then, and nothing writes it again: `kubeadm join` of every later host goes
    there (docs/operations/nodes.md of Kubespray, "Edit cluster-info configmap"). A name is a load balancer's.

    Args:
        text: `data.kubeconfig` of the ConfigMap.
        addresses: of the first control plane, the one to take first.
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
    """Return where a control plane reaches its own API server; `bound` is the address that this listens on, one or all."""
    return f"https://{'127.0.0.1' if bound in ('::', '0.0.0.0') else _bracketed(bound)}:{port}"  # noqa: S104 - nothing is bound here


def kubespray_origin(found: Iterable[Mapping[str, Any]], addresses: Sequence[str]) -> list[dict[str, Any]]:
    """Return the merge patches that send joining hosts to the first control plane; none where they go there, or to a name.

    Args:
        found: the ConfigMaps `cluster-info` and `kubeadm-config`, as the API has them.
        addresses: of the first control plane, the one to take first.
    """
    patches = []
    for one in found:
        key, right = ("kubeconfig", kubespray_cluster_info) if "kubeconfig" in one["data"] else ("ClusterConfiguration", _endpoint)
        if text := right(one["data"][key], addresses):
            patches.append({**{name: one["metadata"][name] for name in ("namespace", "name")}, "patch": {"data": {key: text}}})
    return patches


def _endpoint(text: str, addresses: Sequence[str]) -> str:
    """Return kubeadm's ClusterConfiguration with this endpoint of the control plane; nothing where it is right, or where a name stands."""
    config = yaml.safe_load(text) or {}
    told = urlsplit(f"//{config.get('controlPlaneEndpoint') or ''}")
    if not addresses or not _is_address(told.hostname or "") or told.hostname in addresses:
        return ""
    config["controlPlaneEndpoint"] = f"{_bracketed(addresses[0])}:{told.port or 6443}"
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
        return {one.__name__: one for one in (kubespray_cluster_info, kubespray_own_api, kubespray_origin)}
