# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `kube_backup` decides on the controller: on which hosts a backup is taken, and who etcd's members are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def kube_backup_looks(hosts: Sequence[str], hostvars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what each member of etcd said of itself; nothing of a host that was not reached."""
    return {host: dict(hostvars[host].get("__kube_backup_look") or {}) for host in hosts}


def kube_backup_members(looks: Mapping[str, Any]) -> dict[str, str]:
    """Return name and peer addresses of every member, by what its own settings say."""
    members = [look.get("member") or {} for look in looks.values()]
    return {one["name"]: one["peer_urls"] for one in members if one.get("form")}


def kube_backup_chosen(looks: Mapping[str, Any], control_planes: Sequence[str], answering: Sequence[str]) -> list[str]:
    """Return who takes a backup: the member that is ahead, and one control plane for the PKI; none where no member answers with a leader.

    Args:
        looks: What each member said, by host.
        control_planes: The group of that name, in order.
        answering: The hosts of this run that have not failed.
    """
    states = {host: look.get("health") or {} for host, look in looks.items() if host in answering}
    well = {host: state["revision"] for host, state in states.items() if state.get("leader") and not state.get("errors")}
    if not well:
        return []
    ahead = max(well, key=lambda host: well[host])
    planes = [host for host in control_planes if host in answering]
    return list(dict.fromkeys([ahead, *([] if ahead in planes else planes[:1])]))


def kube_backup_reasons(looks: Mapping[str, Any]) -> str:
    """Return why no member is well, one after the other."""
    return "; ".join(f"{host}: {look.get('reason') or _state(look)}" for host, look in looks.items()) or "the group etcd has no host"


def _state(look: Mapping[str, Any]) -> str:
    health = look.get("health") or {}
    if not health:
        return "it did not answer"
    return f"errors {health['errors']}" if health.get("errors") else "no leader"


class FilterModule:
    """Hands the filters to Ansible."""

    def filters(self) -> dict[str, Any]:
        """Return them by name."""
        return {
            "kube_backup_looks": kube_backup_looks,
            "kube_backup_members": kube_backup_members,
            "kube_backup_chosen": kube_backup_chosen,
            "kube_backup_reasons": kube_backup_reasons,
        }
