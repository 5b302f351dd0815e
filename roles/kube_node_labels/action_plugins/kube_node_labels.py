"""Set the labels and taints of a cluster's Nodes from the inventory, on the controller: the Ansible action `kube_node_labels`.

Own plugin: kubernetes.core needs a task per Node. This one lists all Nodes once and changes only those that differ.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

if TYPE_CHECKING:
    from collections.abc import Mapping

# The variables of a host that are read. Only these are resolved: a host has hundreds.
VARIABLES = ("rack", "slurm_switch", "gpu_env_model", "node_labels", "node_taints", "kube_override_hostname", "group_names")
NAMED = 8


class ActionModule(ActionBase):
    """`present` sets labels and taints of the Nodes of `hosts`, `absent` removes those that this project has set."""

    _VALID_ARGS = frozenset({"kubeconfig", "hosts", "state"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the changes, and the hosts without a Node."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.kubernetes import node_label_run, node_labels  # noqa: PLC0415
            from primus_bootstrap.kubernetes.api import Server  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        args, hostvars = self._task.args, (task_vars or {})["hostvars"]
        known = {host: _variables(hostvars[host]) for host in args["hosts"]}
        if not known:
            return {**result, "changed": False, "msg": "0 of 0 Nodes differ", "absent": []}
        try:
            desired = node_label_run.desired_nodes(known)
            if args["state"] == "absent":
                desired = dict.fromkeys(desired, node_labels.DesiredNode((), ()))
            check, diff = bool(self._task.check_mode), bool(self._task.diff)
            outcome = node_label_run.update_nodes(Server(Path(args["kubeconfig"])), desired, dry_run=check, differences=diff)
        except PrimusError as problem:
            # Returned, because Ansible evaluates failed_when and until for results only, not for exceptions.
            return {**result, "failed": True, "msg": f"{problem.what}. Fix: {problem.fix}"}
        message = f"{len(outcome.changed)} of {len(desired)} Nodes differ{' and were changed' if outcome.changed and not check else ''}"
        if outcome.absent:
            more = ", …" if len(outcome.absent) > NAMED else ""
            message += f"; {len(outcome.absent)} hosts have no Node: {', '.join(outcome.absent[:NAMED])}{more}"
        diffs = [{"before": _text(before), "after": _text(after)} for before, after in outcome.differences]
        return {
            **result,
            "changed": bool(outcome.changed),
            "msg": message,
            "absent": list(outcome.absent),
            **({"diff": diffs} if diffs else {}),
        }


def _variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the relevant variables of a host. hostvars computes all of a host's variables each time it is read."""
    return {name: variables[name] for name in VARIABLES if name in variables}


def _text(what: dict[str, Any]) -> str:
    return json.dumps(what, indent=1, sort_keys=True) + "\n"
