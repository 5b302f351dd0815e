# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters that decide on which hosts a backup is taken and which members etcd has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def kube_backup_states(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the state of each etcd member by host; an empty state for a host that was not reached."""
    return {host: dict(hostvars[host].get("__kube_backup_state") or {}) for host in hosts}


def kube_backup_members(states: Mapping[str, Any]) -> dict[str, str]:
    """Return name and peer URLs of every member, from its own settings."""
    members = [state.get("member") or {} for state in states.values()]
    return {one["name"]: one["peer_urls"] for one in members if one.get("form")}


def kube_backup_hosts(states: Mapping[str, Any], control_planes: Sequence[str], reachable: Sequence[str]) -> list[str]:
    """Return the hosts that take a backup: the member with the highest revision, and one control plane for the PKI.

    Args:
        states: The state of each member by host.
        control_planes: The hosts of that group, in order.
        reachable: The hosts of this run that have not failed.

    Returns:
        An empty list if no member answers with a leader.
    """
    health = {host: state.get("health") or {} for host, state in states.items() if host in reachable}
    healthy = {host: one["revision"] for host, one in health.items() if one.get("leader") and not one.get("errors")}
    if not healthy:
        return []
    newest = max(healthy, key=lambda host: healthy[host])
    planes = [host for host in control_planes if host in reachable]
    return list(dict.fromkeys([newest, *([] if newest in planes else planes[:1])]))


def kube_backup_reasons(states: Mapping[str, Any]) -> str:
    """Return why no member is healthy, host by host."""
    return "; ".join(f"{host}: {state.get('reason') or _reason(state)}" for host, state in states.items()) or "the group etcd has no host"


def _reason(state: Mapping[str, Any]) -> str:
    health = state.get("health") or {}
    if not health:
        return "it did not answer"
    return f"errors {health['errors']}" if health.get("errors") else "no leader"


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return them by name."""
        return {
            "kube_backup_states": kube_backup_states,
            "kube_backup_members": kube_backup_members,
            "kube_backup_hosts": kube_backup_hosts,
            "kube_backup_reasons": kube_backup_reasons,
        }
