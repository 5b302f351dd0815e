"""Write one JSON line per event of Kubespray's Ansible (2.18), which loads this plugin."""  # noqa: INP001

from __future__ import annotations

import json
import os
import time
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: primus_lines
type: aggregate
short_description: write one JSON line per event
description:
  - Appends events to the file that PRIMUS_LINES names, in the format of ansible-runner. Results contain only changes and failures.
"""
_CHARS = 2000


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Appends events to a file."""

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
        """Write the start of a task."""
        self._write("playbook_on_task_start", task=task.get_name(), role="kubespray")

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Write the start of a handler."""
        self._write("playbook_on_task_start", task=task.get_name(), role="kubespray")

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Store when a task started on a host."""
        self._began[host.get_name(), task._uuid] = time.time()  # noqa: SLF001

    def v2_runner_on_ok(self, result: Any) -> None:
        """Write a success."""
        self._result("runner_on_ok", result, {"changed": bool(result._result.get("changed"))})  # noqa: SLF001

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Write a skipped task."""
        self._result("runner_on_skipped", result, {})

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:  # noqa: FBT001, FBT002 - Ansible's signature
        """Write a failure."""
        self._result("runner_on_failed", result, _why(result._result), ignore_errors=ignore_errors)  # noqa: SLF001

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Write that a host is unreachable."""
        self._result("runner_on_unreachable", result, _why(result._result))  # noqa: SLF001

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write the recap."""
        self._write("playbook_on_stats", failures=dict(stats.failures), dark=dict(stats.dark))

    def _result(self, event: str, result: Any, res: dict[str, Any], **more: Any) -> None:
        host, task = result._host.get_name(), result._task  # noqa: SLF001
        seconds = time.time() - self._began.pop((host, task._uuid), time.time())  # noqa: SLF001
        ignored = {"ignore_errors": True} if more.get("ignore_errors") or task.ignore_unreachable else {}
        self._write(
            event, host=host, task=task.get_name(), role="kubespray", task_path=task.get_path(), duration=seconds, res=res, **ignored
        )


def _why(result: dict[str, Any]) -> dict[str, Any]:
    """Return the messages of a failed result, or of its first failed item."""
    if result.get("_ansible_no_log"):
        return {"censored": True}
    parts = [result, *(item for item in result.get("results") or () if isinstance(item, dict) and item.get("failed"))][-2:]
    messages = {key: str(part[key])[-_CHARS:] for part in parts for key in ("msg", "stderr", "stdout") if part.get(key)}
    return messages | ({"rc": result["rc"]} if "rc" in result else {})
