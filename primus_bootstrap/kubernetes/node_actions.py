"""The states of the Ansible action `kube_nodes`: drains, quarantine marks, labels and taints of Nodes.

Hosts have their names in hosts.yaml; their Nodes may have others (`kube_override_hostname`).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.kubernetes import drain, node_label_run, node_labels, node_quarantine, node_ready
from primus_bootstrap.kubernetes.api import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from primus_bootstrap.kubernetes.api import Api

_OWNER = "primus-bootstrap"
# The variables of a host that labels and taints depend on. Only these are resolved: a host has hundreds.
_VARIABLES = ("rack", "slurm_switch", "gpu_env_model", "node_labels", "node_taints", "kube_override_hostname", "group_names")
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Task:
    """The arguments of a task, the variables of all hosts, and how it runs."""

    args: Mapping[str, Any]
    hostvars: Mapping[str, Mapping[str, Any]]
    check: bool = False
    diff: bool = False
    open_server: Callable[[Path], Api] = Server

    @property
    def api(self) -> Api:
        """The cluster's API server."""
        return self.open_server(Path(self.args["kubeconfig"]))

    @property
    def host(self) -> str:
        """The host of a task for one Node."""
        return str(self.args["host"])

    def node(self, host: str) -> str:
        """Return the name of a host's Node."""
        return str(self.hostvars[host].get("kube_override_hostname") or host) if host in self.hostvars else host

    def nodes(self) -> list[str]:
        """Return the Nodes of `hosts`."""
        return [self.node(str(host)) for host in self.args.get("hosts") or ()]


def run(task: Task) -> dict[str, Any]:
    """Change the Nodes to the task's `state` and return the task's result.

    Raises:
        PrimusError: The API server does not answer or rejects something, or the Nodes do not get into this state.
    """
    return STATES[str(task.args["state"])](task)


def _drain(task: Task) -> dict[str, Any]:
    args = task.args
    options = drain.DrainOptions(float(args["wait_s"]), float(args["evict_s"]), force=bool(args["force"]))
    record = {"owner": _OWNER, "reason": str(args["reason"]), "time": round(time.time()), "host": task.host}
    return {"changed": drain.Drain(task.api, task.node(task.host), options).run(record, dry_run=task.check)}


def _uncordon(task: Task) -> dict[str, Any]:
    nodes, reason = [task.node(task.host)], str(task.args["reason"])
    return {"changed": bool(node_quarantine.lift_mark(task.api, nodes, mark="drain", reason=reason, dry_run=task.check))}


def _delete(task: Task) -> dict[str, Any]:
    return {"changed": drain.delete_node(task.api, task.node(task.host), dry_run=task.check)}


def _wait(task: Task) -> dict[str, Any]:
    node_ready.wait_for(task.api, task.node(task.host), float(task.args["wait_s"]))
    return {"changed": False}


def _read(task: Task) -> dict[str, Any]:
    return {"changed": False, **(node_quarantine.read_record(task.api, node) if (node := next(iter(task.nodes()), "")) else {"nodes": []})}


def _quarantine(task: Task) -> dict[str, Any]:
    records = {task.node(str(one["host"])): one for one in task.args.get("records") or ()}
    return _changed(node_quarantine.set_quarantines(task.api, records, dry_run=task.check) if records else [])


def _release(task: Task) -> dict[str, Any]:
    nodes, owner = task.nodes(), str(task.args.get("owner") or "")
    return _changed(node_quarantine.lift_quarantines(task.api, nodes, owner=owner, dry_run=task.check) if nodes else [])


def _clear(task: Task) -> dict[str, Any]:
    nodes = task.nodes()
    return _changed(node_quarantine.lift_all(task.api, nodes, dry_run=task.check) if nodes else [])


def _changed(nodes: list[str]) -> dict[str, Any]:
    return {"changed": bool(nodes), "nodes": nodes}


def _label(task: Task) -> dict[str, Any]:
    # hostvars computes all variables of a host each time it is read.
    hosts = {host: task.hostvars[host] for host in task.args["hosts"]}
    known = {host: {name: values[name] for name in _VARIABLES if name in values} for host, values in hosts.items()}
    if not known:
        return {"changed": False, "msg": "0 of 0 Nodes differ", "absent": []}
    desired = node_label_run.desired_nodes(known)
    if task.args["state"] == "unlabelled":
        desired = dict.fromkeys(desired, node_labels.DesiredNode((), ()))
    outcome = node_label_run.update_nodes(task.api, desired, dry_run=task.check, differences=task.diff)
    message = f"{len(outcome.changed)} of {len(desired)} Nodes differ{' and were changed' if outcome.changed and not task.check else ''}"
    if outcome.absent:
        more = ", …" if len(outcome.absent) > _SHOWN else ""
        message += f"; {len(outcome.absent)} hosts have no Node: {', '.join(outcome.absent[:_SHOWN])}{more}"
    diffs = [{"before": _text(before), "after": _text(after)} for before, after in outcome.differences]
    result = {"changed": bool(outcome.changed), "msg": message, "absent": list(outcome.absent)}
    return {**result, "diff": diffs} if diffs else result


def _text(what: dict[str, Any]) -> str:
    return json.dumps(what, indent=1, sort_keys=True) + "\n"


STATES: dict[str, Callable[[Task], dict[str, Any]]] = {
    "drained": _drain,
    "uncordoned": _uncordon,
    "deleted": _delete,
    "ready": _wait,
    "read": _read,
    "quarantined": _quarantine,
    "released": _release,
    "cleared": _clear,
    "labelled": _label,
    "unlabelled": _label,
}
