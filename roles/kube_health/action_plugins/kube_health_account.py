"""Create the service account with which control planes evaluate the health of Nodes: the Ansible action `kube_health_account`.

Own plugin: it applies the objects through the package's API client and waits for the token in one step on the controller.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

TOKEN_S = 30.0


class ActionModule(ActionBase):
    """`present` applies the objects and returns the token, `absent` deletes them; the last object is the token's Secret."""

    _VALID_ARGS = frozenset({"kubeconfig", "objects", "state"})

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return whether anything changed, and the token, which is a secret."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            from primus_bootstrap.core.errors import PrimusError  # noqa: PLC0415 - where it is missing the error has a fix
            from primus_bootstrap.kubernetes import managed_objects  # noqa: PLC0415
            from primus_bootstrap.kubernetes.api import Server  # noqa: PLC0415
        except ImportError as error:
            fix = "install primus-bootstrap into the Python that runs ansible-playbook"
            raise AnsibleActionFail(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
        args, check = self._task.args, bool(self._task.check_mode)
        objects = [dict(one) for one in args["objects"]]
        try:
            api = Server(Path(args["kubeconfig"]))
            if args["state"] == "absent":
                return {**result, "changed": managed_objects.remove(api, objects, dry_run=check)}
            changed = managed_objects.apply_objects(api, objects, dry_run=check)
            token = "" if check else self._token(api, managed_objects.path_of(objects[-1]))
        except PrimusError as problem:
            raise AnsibleActionFail(f"{problem.what}. Fix: {problem.fix}") from problem
        return {**result, "changed": changed, "token": token}

    @staticmethod
    def _token(api: Any, path: str) -> str:
        """Wait until kube-controller-manager has created the token, and return it."""
        deadline = time.monotonic() + TOKEN_S
        while time.monotonic() < deadline:
            if text := (api.get(path).get("data") or {}).get("token"):
                return base64.b64decode(text).decode()
            time.sleep(0.5)
        fix = "check that kube-controller-manager runs, which creates it, then run the same command again"
        raise AnsibleActionFail(f"the token of the service account was not created within {TOKEN_S:g} s. Fix: {fix}")
