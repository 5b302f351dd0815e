"""Ansible action `preflight_probe`: run the probe script on a host and compare its clock with the controller's.

It extends `raw`, because the host may have no usable Python. The host reads its clock between the command and the answer, so only a quick
answer tells the difference between the clocks. A slow one is repeated, and is `unknown` if it stays slow.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
import time
from typing import Any

from ansible.plugins.action.raw import ActionModule as Raw

_TRIES = 3
_FIX = "set the time of this host; if every host fails, set the controller's"
_SLOW_FIX = "apply again when the host and this machine are less busy"


class ActionModule(Raw):  # type: ignore[misc] # Ansible has no types
    """Arguments: `command`; `max_offset_s` of the clock; `limit_s` of the task; `skip`, the reason to skip the clock check."""

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return raw's result, with the verdict `clock` added to the last line of output."""
        arguments = dict(self._task.args)
        self._task.args = {"_raw_params": arguments["command"]}
        result: dict[str, Any] = {}
        began = time.monotonic()
        for tried in range(1, _TRIES + 1):
            sent = time.time()
            result = super().run(tmp, task_vars)
            received = time.time()
            head, _, last = str(result.get("stdout") or "").rstrip().rpartition("\n")
            try:
                answer = json.loads(last)
                read_at = answer["facts"]["clock"]["read_at"]
            except (ValueError, KeyError, TypeError):
                return result
            verdict = compare_clock(read_at - received, read_at - sent, float(arguments["max_offset_s"]))
            if verdict["verdict"] != "unknown" or not time_for_another(time.monotonic() - began, tried, float(arguments["limit_s"])):
                break
        if arguments.get("skip"):
            verdict |= {"verdict": "skipped", "reason": arguments["skip"], "source": "preflight_skip", "fix": ""}
        record = {"check": "clock", "host": (task_vars or {}).get("inventory_hostname", ""), "device": "", "serial": "", **verdict}
        record |= {"started": sent, "seconds": round(received - sent, 4), "schema": "primus.verdict/1"}
        answer["verdicts"] = [*answer.get("verdicts", ()), record]
        stdout = "\n".join([*head.splitlines(), json.dumps(answer)])
        return {**result, "stdout": stdout, "stdout_lines": stdout.splitlines()}


def time_for_another(spent_s: float, tried: int, limit_s: float) -> bool:
    """Return whether another try fits into the task's limit, if it takes up to twice the average of those before."""
    return spent_s + 2 * spent_s / tried < limit_s


def compare_clock(least_s: float, most_s: float, limit_s: float) -> dict[str, Any]:
    """Return the verdict of a clock that is `least_s` to `most_s` seconds ahead of the controller's; negative is behind."""
    record = {"expected": f"within {limit_s:g}", "unit": "s", "source": "preflight_max_clock_offset_s", "reason": "", "fix": ""}
    record["found"] = f"{(least_s + most_s) / 2:.2f} ± {(most_s - least_s) / 2:.2f}"
    if -limit_s <= least_s and most_s <= limit_s:
        return {**record, "verdict": "pass"}
    if least_s > limit_s or most_s < -limit_s:
        side, apart = ("ahead of", least_s) if least_s > limit_s else ("behind", -most_s)
        return {**record, "verdict": "fail", "reason": f"the clock is at least {apart:.1f} s {side} the controller's", "fix": _FIX}
    reason = f"the answer took {most_s - least_s:.1f} s, too long to tell whether the clocks are within {limit_s:g} s of each other"
    return {**record, "verdict": "unknown", "reason": reason, "fix": _SLOW_FIX}
