"""Ansible action `bench_group`: start or finish the part of one host in a run over several hosts."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Uses `primus_bootstrap.bench` on the controller, so it cannot be a module.

    `start` starts the part, `finish` waits for its end. A host that has no part in this round is not contacted.
    """

    _VALID_ARGS = frozenset({"state", "folder", "policy_file", "tier", "program", "image", "port"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return whether the host has a part in this round; its result is in the folder."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.bench.fabric.session import group_part, has_started  # noqa: PLC0415
            from primus_bootstrap.bench.results.step_commands import BenchRequest, read_policy  # noqa: PLC0415
            from primus_bootstrap.bench.results.store import BenchStore  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        args, host = self._task.args, str((task_vars or {})["inventory_hostname"])
        try:
            request = BenchRequest(
                tier=str(args["tier"]),
                policy_file=str(args["policy_file"]),
                program=str(args["program"]),
                image=str(args["image"]),
                storage_folder="",
                force=True,
            )
            store = BenchStore(Path(args["folder"]))
            tier = read_policy(request.policy_file).tiers[request.tier]
            part = group_part(store, host, request, tier, port=int(args["port"]))
            if part is None:
                return {**result, "changed": False, "runs": False}
            arguments = {"state": args["state"], "number": part.number}
            if args["state"] == "start":
                arguments["steps"] = [part.step]
            elif not has_started(store, [host]):
                return {**result, "changed": False, "runs": False}
            else:
                arguments["stop"] = not has_started(store, part.hosts)
            answer = self._execute_module(module_name="bench_node", module_args=arguments, task_vars=task_vars)
            if answer.get("failed"):
                answer = {"absent" if args["state"] == "start" else "cut": str(answer.get("msg", "its part failed"))}
            store.save_group_answer(host, {name: answer[name] for name in ("started", "absent", "step", "cut") if name in answer})
        except PrimusError as problem:
            raise AnsibleActionFail(str(problem)) from problem
        return {**result, "changed": False, "runs": True}
