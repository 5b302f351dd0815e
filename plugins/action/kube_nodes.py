"""Drain, label and quarantine the Nodes of a cluster, on the controller: the Ansible action `kube_nodes`.

Own plugin: `kubernetes.core.k8s_drain` does not wait for jobs. A quarantine is an annotation, a taint and a cordon with an owner, which
k8s_taint and k8s_drain cannot change together. `kubernetes.core.k8s` needs a task for each Node; this action lists all Nodes once and
changes only those that differ.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """`state` is what the Nodes get.

    For the Node of `host`: `drained` (cordoned and empty), `uncordoned` (ends a drain), `deleted`, `ready` (waits for it).
    For the Nodes of `hosts`: `labelled` and `unlabelled` (labels and taints of hosts.yaml), `read` (returns the record of the first),
    `released` (removes the quarantines of `owner`), `cleared` (removes all marks). `quarantined` marks the Nodes of `records`.
    """

    _VALID_ARGS = frozenset({"kubeconfig", "state", "host", "hosts", "reason", "wait_s", "evict_s", "force", "records", "owner"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return whether Nodes were changed, and what primus_bootstrap/kubernetes/node_actions.py returns for the state."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.kubernetes import node_actions  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        hostvars = (task_vars or {})["hostvars"]
        task = node_actions.Task(self._task.args, hostvars, check=bool(self._task.check_mode), diff=bool(self._task.diff))
        try:
            return {**result, **node_actions.run(task)}
        except PrimusError as problem:
            # Returned, because Ansible evaluates failed_when and until for results only, not for exceptions.
            return {**result, "failed": True, "msg": f"{problem.what}. Fix: {problem.fix}"}
