"""Bring labels and taints from the inventory to the Nodes of a cluster, on the controller: the Ansible action `kube_node_labels`."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

if TYPE_CHECKING:
    from collections.abc import Mapping

# What of a host's variables counts here. Only these are resolved: a host has hundreds.
VARIABLES = ("rack", "slurm_switch", "gpu_env_model", "node_labels", "node_taints", "kube_override_hostname")
NAMED = 8


class ActionModule(ActionBase):
    """`present` gives the Nodes of `hosts` what the inventory says, `absent` takes off what this project had given them."""

    _VALID_ARGS = frozenset({"kubeconfig", "hosts", "state"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what was changed, and which hosts have no Node."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.kubernetes import node_label_run, node_labels  # noqa: PLC0415
            from primus_bootstrap.kubernetes.api import Server  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        args, hostvars = self._task.args, (task_vars or {})["hostvars"]
        known = {host: _stated(hostvars[host]) for host in args["hosts"]}
        if not known:
            return {**result, "changed": False, "msg": "0 of 0 Nodes differ", "absent": []}
        try:
            wishes = node_label_run.desired_nodes(known)
            if args["state"] == "absent":
                wishes = dict.fromkeys(wishes, node_labels.DesiredNode((), ()))
            check, diff = bool(self._task.check_mode), bool(self._task.diff)
            outcome = node_label_run.update_nodes(Server(Path(args["kubeconfig"])), wishes, dry_run=check, differences=diff)
        except PrimusError as problem:
            # Returned: of an exception Ansible evaluates no failed_when and no until.
            return {**result, "failed": True, "msg": f"{problem.what}. Fix: {problem.fix}"}
        told = f"{len(outcome.changed)} of {len(wishes)} Nodes differ{' and were changed' if outcome.changed and not check else ''}"
        if outcome.absent:
            more = ", …" if len(outcome.absent) > NAMED else ""
            told += f"; {len(outcome.absent)} hosts have no Node: {', '.join(outcome.absent[:NAMED])}{more}"
        shown = [{"before": _text(before), "after": _text(after)} for before, after in outcome.differences]
        return {
            **result,
            "changed": bool(outcome.changed),
            "msg": told,
            "absent": list(outcome.absent),
            **({"diff": shown} if shown else {}),
        }


def _stated(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return what counts of a host; its variables are put together anew each time that hostvars is asked for them."""
    return {name: variables[name] for name in VARIABLES if name in variables}


def _text(what: dict[str, Any]) -> str:
    return json.dumps(what, indent=1, sort_keys=True) + "\n"
