"""What Kubespray's Ansible does, one JSON line an event, for who watches: loaded by that Ansible (2.18), which knows nothing of ours."""  # noqa: INP001

from __future__ import annotations

import json
import os
import time
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: primus_lines
type: aggregate
short_description: one JSON line an event
description:
  - Appends events to the file that PRIMUS_LINES names, in ansible-runner's spelling. Of results it keeps what failed and why, nothing else.
"""
_CHARS = 2000


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Appends; a watcher that is gone stops nothing."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "primus_lines"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        """Open the file."""
        super().__init__()
        self._file = open(os.environ.get("PRIMUS_LINES", os.devnull), "a", encoding="utf-8")  # noqa: SIM115, PTH123 - open to the end
        self._began: dict[tuple[str, str], float] = {}

    def _write(self, event: str, **data: Any) -> None:
        self._file.write(json.dumps({"event": event, "event_data": data}) + "\n")
        self._file.flush()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002, FBT001 - Ansible's signature
        """A task began."""
        self._write("playbook_on_task_start", task=task.get_name(), role="kubespray")

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """A handler began."""
        self._write("playbook_on_task_start", task=task.get_name(), role="kubespray")

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """A task began on a host."""
        self._began[host.get_name(), task._uuid] = time.time()  # noqa: SLF001

    def v2_runner_on_ok(self, result: Any) -> None:
        """It ended well."""
        self._result("runner_on_ok", result, {"changed": bool(result._result.get("changed"))})  # noqa: SLF001

    def v2_runner_on_skipped(self, result: Any) -> None:
        """It was left out."""
        self._result("runner_on_skipped", result, {})

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: FBT001, FBT002 - Ansible's signature
        """It failed."""
        self._result("runner_on_failed", result, _why(result._result), ignore_errors=ignore_errors)  # noqa: SLF001

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """The host did not answer."""
        self._result("runner_on_unreachable", result, _why(result._result))  # noqa: SLF001

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The playbook ended."""
        self._write("playbook_on_stats", failures=dict(stats.failures), dark=dict(stats.dark))

    def _result(self, event: str, result: Any, res: dict[str, Any], **more: Any) -> None:
        host, task = result._host.get_name(), result._task  # noqa: SLF001
        seconds = time.time() - self._began.pop((host, task._uuid), time.time())  # noqa: SLF001
        ignored = {"ignore_errors": True} if more.get("ignore_errors") or task.ignore_unreachable else {}
        self._write(
            event, host=host, task=task.get_name(), role="kubespray", task_path=task.get_path(), duration=seconds, res=res, **ignored
        )


def _why(result: dict[str, Any]) -> dict[str, Any]:
    """Return what says why, of the result or of its first item that failed."""
    if result.get("_ansible_no_log"):
        return {"censored": True}
    parts = [result, *(one for one in result.get("results") or () if isinstance(one, dict) and one.get("failed"))][-2:]
    found = {key: str(part[key])[-_CHARS:] for part in parts for key in ("msg", "stderr", "stdout") if part.get(key)}
    return found | ({"rc": result["rc"]} if "rc" in result else {})
