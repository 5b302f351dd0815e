"""Drain, uncordon, delete or wait for a Node, on the controller: the Ansible action `kube_drain`.

Own plugin: `kubernetes.core.k8s_drain` does not wait for jobs, and does not record who drained a Node and why.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

OWNER = "primus-bootstrap"


class ActionModule(ActionBase):
    """`drained` cordons and drains the Node of a host, `ready` waits for it, `uncordoned` ends a drain, `deleted` deletes the Node."""

    _VALID_ARGS = frozenset({"kubeconfig", "state", "host", "reason", "wait_s", "evict_s", "force"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return whether the Node was changed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.kubernetes import drain, node_quarantine, node_ready  # noqa: PLC0415
            from primus_bootstrap.kubernetes.api import Server  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        args, hostvars, check = self._task.args, (task_vars or {})["hostvars"], bool(self._task.check_mode)
        host, reason = str(args["host"]), str(args.get("reason") or "")
        node = str(hostvars[host].get("kube_override_hostname") or host) if host in hostvars else host
        try:
            api = Server(Path(args["kubeconfig"]))
            if args["state"] == "deleted":
                changed = drain.delete_node(api, node, dry_run=check)
            elif args["state"] == "ready":
                changed = False
                node_ready.wait_for(api, node, float(args["wait_s"]))
            elif args["state"] == "uncordoned":
                changed = bool(node_quarantine.lift_mark(api, [node], mark="drain", reason=reason, dry_run=check))
            else:
                options = drain.DrainOptions(float(args["wait_s"]), float(args["evict_s"]), force=bool(args["force"]))
                record = {"owner": OWNER, "reason": reason, "time": round(time.time()), "host": host}
                changed = drain.Drain(api, node, options).run(record, dry_run=check)
        except PrimusError as problem:
            # Returned, because Ansible evaluates failed_when and until for results only, not for exceptions.
            return {**result, "failed": True, "msg": f"{problem.what}. Fix: {problem.fix}"}
        return {**result, "changed": changed}
