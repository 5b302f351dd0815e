"""Ansible action `bench_step`: one step of a bench that runs on the controller or starts from it.

It uses `primus_bootstrap.bench` on the controller, so it cannot be a module. It measures with the module bench_node.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """The argument `state` is the step.

    For all hosts: `begin` clears the results of the previous bench and returns the tiers. `rerun` returns the round of repeated
    measurements, 0 if there is none. `next` reads a round of runs over several hosts and returns the next one; `more` is false after the
    last. `decide` writes decisions, history and reports, and returns the reported verdicts.

    For one host: `measure` measures it and stores the results. `start` starts its part in a run over several hosts, `finish` waits for its
    end. A host that needs no bench, or has no part in this round, is not contacted.
    """

    _VALID_ARGS = frozenset(
        {"state", "folder", "policy_file", "tier"}
        | {"hosts", "fleet", "limit_percent", "cluster", "present", "at_once"}
        | {"program", "image", "force", "facts", "expected", "storage_folder", "trial", "round", "port"}
    )

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the result of the step."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.bench.role_steps import RoleStep  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error

        def on_host(arguments: dict[str, Any]) -> dict[str, Any]:
            answer: dict[str, Any] = self._execute_module(module_name="bench_node", module_args=arguments, task_vars=task_vars)
            return answer

        args = {**self._task.args, "force": boolean(self._task.args.get("force", True))}
        try:
            return {**result, "changed": False, **RoleStep(args, task_vars or {}, on_host, check=bool(self._task.check_mode)).run()}
        except PrimusError as problem:
            raise AnsibleActionFail(str(problem)) from problem
