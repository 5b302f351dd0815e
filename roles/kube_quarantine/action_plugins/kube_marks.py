"""Read, set and lift this project's marks on Nodes, on the controller: the Ansible action `kube_marks`."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """`seen` looks at one Node, `kept` marks the Nodes of records, `released` lifts an owner's, `cleared` takes every mark off.

    Hosts are named as in hosts.yaml; their Nodes may have another name (`kube_override_hostname`).
    """

    _VALID_ARGS = frozenset({"kubeconfig", "state", "hosts", "records", "owner"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what was seen, or which Nodes were changed."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.kubernetes import node_quarantine  # noqa: PLC0415
            from primus_bootstrap.kubernetes.api import Server  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        args, hostvars = self._task.args, (task_vars or {})["hostvars"]
        check = bool(self._task.check_mode)

        def node(host: str) -> str:
            return str(hostvars[host].get("kube_override_hostname") or host) if host in hostvars else host

        hosts, records = [node(str(host)) for host in args.get("hosts") or ()], list(args.get("records") or ())
        try:
            if not hosts and not records:
                return {**result, "changed": False, "nodes": []}
            api = Server(Path(args["kubeconfig"]))
            if args["state"] == "seen":
                return {**result, "changed": False, **node_quarantine.read_record(api, hosts[0])}
            if args["state"] == "kept":
                changed = node_quarantine.set_quarantines(api, {node(str(one["host"])): one for one in records}, dry_run=check)
            elif args["state"] == "released":
                changed = node_quarantine.lift_quarantines(api, hosts, owner=str(args.get("owner") or ""), dry_run=check)
            else:
                changed = node_quarantine.lift_all(api, hosts, dry_run=check)
        except PrimusError as problem:
            # Returned: of an exception Ansible evaluates no failed_when and no until.
            return {**result, "failed": True, "msg": f"{problem.what}. Fix: {problem.fix}"}
        return {**result, "changed": bool(changed), "nodes": changed}
