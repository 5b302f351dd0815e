"""Ansible action `bench_measure`: measure one host and store the results on the controller."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Uses `primus_bootstrap.bench` on the controller, so it cannot be a module. A host that needs no bench is not contacted."""

    _VALID_ARGS = frozenset(
        {"folder", "policy_file", "tier", "force", "facts", "program", "image", "expected", "storage_folder", "trial", "round"}
    )

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the number of steps; their results are in the folder."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.bench.results.step_commands import BenchRequest, remaining_s, steps_for_host  # noqa: PLC0415
            from primus_bootstrap.bench.results.store import BenchStore  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        args, host = self._task.args, str((task_vars or {})["inventory_hostname"])
        request = BenchRequest(
            tier=str(args["tier"]),
            policy_file=str(args["policy_file"]),
            program=str(args["program"]),
            image=str(args["image"]),
            storage_folder=str(args["storage_folder"]),
            force=boolean(args["force"]),
            trial=dict(args["trial"]),
        )
        try:
            store, round_ = BenchStore(Path(args["folder"])), int(args["round"])
            if round_ == 0:
                store.save_facts(host, dict(args["facts"]))
            answers = store.answers(host)
            steps = steps_for_host(answers, request, round_=round_, reruns=store.reruns(host))
            if steps:
                store.mark_requested(host)
                left_s = remaining_s(answers, request)
                arguments = {"state": "measure", "steps": steps, "expected": args["expected"], "left_s": left_s}
                measured = self._execute_module(module_name="bench_node", module_args=arguments, task_vars=task_vars)
                if "steps" not in measured:
                    return {**result, **measured}
                store.add_round(host, measured["steps"], now=float(measured["now"]))
        except PrimusError as problem:
            raise AnsibleActionFail(str(problem)) from problem
        return {**result, "changed": False, "steps": len(steps)}
