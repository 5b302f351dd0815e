"""Read, set and remove this project's marks on Nodes, on the controller: the Ansible action `kube_marks`.

Own plugin: a mark is an annotation, a taint and a cordon with an owner, which kubernetes.core.k8s_taint and k8s_drain cannot change
together.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """`read` returns the record of one Node, `set` marks the Nodes of records, `released` removes an owner's marks, `cleared` removes all.

    Hosts have their names in hosts.yaml; their Nodes may have others (`kube_override_hostname`).
    """

    _VALID_ARGS = frozenset({"kubeconfig", "state", "hosts", "records", "owner"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the record, or the Nodes that were changed."""
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
            if args["state"] == "read":
                return {**result, "changed": False, **node_quarantine.read_record(api, hosts[0])}
            if args["state"] == "set":
                changed = node_quarantine.set_quarantines(api, {node(str(one["host"])): one for one in records}, dry_run=check)
            elif args["state"] == "released":
                changed = node_quarantine.lift_quarantines(api, hosts, owner=str(args.get("owner") or ""), dry_run=check)
            else:
                changed = node_quarantine.lift_all(api, hosts, dry_run=check)
        except PrimusError as problem:
            # Returned, because Ansible evaluates failed_when and until for results only, not for exceptions.
            return {**result, "failed": True, "msg": f"{problem.what}. Fix: {problem.fix}"}
        return {**result, "changed": bool(changed), "nodes": changed}
