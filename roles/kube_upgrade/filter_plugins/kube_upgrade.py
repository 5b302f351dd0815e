# ruff: noqa: INP001 (Ansible loads it by path)
"""What the role `kube_upgrade` decides on the controller: whether a cluster may go to a version, and which workers go together."""

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


def kube_upgrade_refusal(running: Sequence[str], wanted: str) -> str:
    """Return why the cluster must not go to a version, with the fix; empty where it may.

    Raises:
        AnsibleFilterError: The package that knows the releases is not there.
    """
    try:
        from primus_bootstrap.core.errors import PlanError  # noqa: PLC0415 - where it is missing the error has a fix
        from primus_bootstrap.kubernetes.preflight import check_upgrade  # noqa: PLC0415
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleFilterError(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    try:
        check_upgrade(running, wanted)
    except PlanError as error:
        return f"{error.what}. Fix: {error.fix}"
    return ""


def kube_upgrade_unfinished(note: str) -> list[str]:
    """Return the Nodes that a run which was cut short has not brought to its end, by the note that it left in the state folder.

    Raises:
        AnsibleFilterError: The note is there and cannot be read, or the package that reads it is not there.
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


def kube_upgrade_left(workers: Mapping[str, str], nodes: Sequence[Mapping[str, Any]], wanted: str, unfinished: Sequence[str]) -> list[str]:
    """Return the workers that are not there yet: of another version, of a run that was cut short, or unknown to the API.

    A cordon says nothing of that: one that is there, and that somebody has cordoned, is left alone.

    Args:
        workers: each with the name of its Node, empty where it is the host's.
        nodes: as the API has them.
        wanted: the version to go to.
        unfinished: Nodes of a run that was cut short.
    """
    done = {node["metadata"]["name"] for node in nodes if _version(node) == wanted} - set(unfinished)
    return [host for host, node in workers.items() if (node or host) not in done]


def kube_upgrade_away(workers: Mapping[str, str], nodes: Sequence[Mapping[str, Any]], answering: Sequence[str]) -> dict[str, str]:
    """Return the workers that cannot be upgraded now, each with why: its host does not answer, or its Node is not Ready.

    One of them would end every play of Kubespray for all others, or be cordoned, drained in vain and left.
    """
    ready = {node["metadata"]["name"]: _is_ready(node) for node in nodes}
    silent = {host: "does not answer" for host in workers if host not in answering}
    return {host: "not Ready" for host, node in workers.items() if not ready.get(node or host, True)} | silent


def _is_ready(node: Mapping[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"].get("conditions") or ())


def kube_upgrade_batches(left: Sequence[str], racks: Mapping[str, str], most: int) -> list[list[str]]:
    """Return the workers that go together: a rack at a time, and of a large one so many at most (0 = all of it).

    A job that keeps to a rack is then disturbed once. Hosts without a rack come last, together.
    """
    order = sorted({racks[host] for host in left if host in racks})
    groups = [[host for host in left if racks.get(host) == rack] for rack in order] + [[host for host in left if host not in racks]]
    size = most if most > 0 else max(len(left), 1)
    return [group[at : at + size] for group in groups for at in range(0, len(group), size)]


class FilterModule:
    """Ansible finds filters through this class."""

    def filters(self) -> dict[str, Any]:
        """Return the filters by name."""
        judging = (kube_upgrade_versions, kube_upgrade_refusal)
        names = (*judging, kube_upgrade_unfinished, kube_upgrade_away, kube_upgrade_left, kube_upgrade_batches)
        return {one.__name__: one for one in names}
