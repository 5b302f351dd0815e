# ruff: noqa: INP001 (Ansible loads it by path)
"""Filters that decide whether a cluster may be upgraded to a version, and in which batches its workers are upgraded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def _version(node: Mapping[str, Any]) -> str:
    return str(node["status"]["nodeInfo"]["kubeletVersion"]).removeprefix("v")


def kube_upgrade_versions(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the versions that the nodes run, each once."""
    return sorted({_version(node) for node in nodes})


def kube_upgrade_refusal(running: Sequence[str], wanted: str, release: str = "") -> str:
    """Return why the cluster must not be upgraded to a version with a release of Kubespray, with the fix; empty if it may.

    Raises:
        AnsibleFilterError: primus_bootstrap cannot be imported.
    """
    try:
        from primus_bootstrap.core.errors import PlanError  # noqa: PLC0415 - where it is missing the error has a fix
        from primus_bootstrap.inventory.kubespray_release import load_release  # noqa: PLC0415
        from primus_bootstrap.kubernetes.preflight import check_upgrade  # noqa: PLC0415
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleFilterError(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    try:
        check_upgrade(running, wanted, load_release(release))
    except PlanError as error:
        return f"{error.what}. Fix: {error.fix}"
    return ""


def kube_upgrade_unfinished(note: str) -> list[str]:
    """Return the Nodes that an interrupted upgrade has not finished, from its record in the state folder.

    Raises:
        AnsibleFilterError: The record cannot be read, or primus_bootstrap cannot be imported.
    """
    try:
        from primus_bootstrap.core.errors import RunError  # noqa: PLC0415 - where it is missing the error has a fix
        from primus_bootstrap.kubernetes.cordons import read_cordon_record  # noqa: PLC0415
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleFilterError(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    try:
        found = read_cordon_record(Path(note))
    except RunError as error:
        raise AnsibleFilterError(f"{error.what}. Fix: {error.fix}") from error
    return [*found["taking"], *found["unfinished"]]


def kube_upgrade_pending(
    workers: Mapping[str, str], nodes: Sequence[Mapping[str, Any]], wanted: str, unfinished: Sequence[str]
) -> list[str]:
    """Return the workers to upgrade: those with another version, of an interrupted upgrade, or unknown to the API.

    A cordon does not matter: a worker with the version that somebody has cordoned is not changed.

    Args:
        workers: Host -> name of its Node; empty if it is the host's name.
        nodes: The Nodes from the API.
        wanted: The version to upgrade to.
        unfinished: Nodes of an interrupted upgrade.
    """
    done = {node["metadata"]["name"] for node in nodes if _version(node) == wanted} - set(unfinished)
    return [host for host, node in workers.items() if (node or host) not in done]


def kube_upgrade_unavailable(workers: Mapping[str, str], nodes: Sequence[Mapping[str, Any]], reachable: Sequence[str]) -> dict[str, str]:
    """Return the workers that cannot be upgraded now, with the reason: the host does not answer, or its Node is not Ready.

    One of them would end Kubespray's plays for all others, or would be cordoned and never drained.
    """
    ready = {node["metadata"]["name"]: _is_ready(node) for node in nodes}
    unreachable = {host: "does not answer" for host in workers if host not in reachable}
    return {host: "not Ready" for host, node in workers.items() if not ready.get(node or host, True)} | unreachable


def _is_ready(node: Mapping[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions") or ())


def kube_upgrade_batches(workers: Sequence[str], racks: Mapping[str, str], most: int) -> list[list[str]]:
    """Return the batches of workers: one rack at a time, with at most `most` workers (0 = the whole rack).

    A job within one rack is then interrupted once. Hosts without a rack come last, together.
    """
    order = sorted({racks[host] for host in workers if host in racks})
    groups = [[host for host in workers if racks.get(host) == rack] for rack in order] + [[host for host in workers if host not in racks]]
    size = most if most > 0 else max(len(workers), 1)
    return [group[at : at + size] for group in groups for at in range(0, len(group), size)]


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        of_version = (kube_upgrade_versions, kube_upgrade_refusal)
        of_workers = (kube_upgrade_unfinished, kube_upgrade_unavailable, kube_upgrade_pending, kube_upgrade_batches)
        return {one.__name__: one for one in (*of_version, *of_workers)}
