"""Where hosts that join are sent: the server that the ConfigMap `cluster-info` names (kube-public), which kubeadm writes once."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
    first = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    for entry in wrong:
        entry["server"] = f"https://{first}:{urlsplit(entry['server']).port or 6443}"
    return str(yaml.safe_dump(config, sort_keys=False))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return it by name."""
        return {"kubespray_cluster_info": kubespray_cluster_info}
