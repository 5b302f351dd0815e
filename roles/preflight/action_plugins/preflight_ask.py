"""Ask a host what it is, and hold its clock against the controller's: the Ansible action `preflight_ask`.

It is `raw` with a watch: the host read its clock at some moment between the question and the answer, so only an
answer that came quickly tells how far apart the clocks are. A slow one is asked again, and is `unknown` if it stays
slow: on a busy machine the travel is not the host's fault.
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import json
import time
from typing import Any

from ansible.plugins.action.raw import ActionModule as Raw

_TRIES = 3
_FIX = "set the time of this host; where every host fails, set the controller's"
_SLOW_FIX = "apply again when the host and this machine are less busy"


class ActionModule(Raw):  # type: ignore[misc] # Ansible has no types
    """Arguments: `command`, and of the clock `max_offset_s` and `skip`, the reason why the site does not want it judged."""

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return raw's result, its last line of output completed by the verdict `clock`."""
        arguments = dict(self._task.args)
        self._task.args = {"_raw_params": arguments["command"]}
        result: dict[str, Any] = {}
        for _ in range(_TRIES):
            sent = time.time()
            result = super().run(tmp, task_vars)
            received = time.time()
            head, _, last = str(result.get("stdout") or "").rstrip().rpartition("\n")
            try:
                answer = json.loads(last)
                read_at = answer["facts"]["clock"]["read_at"]
            except (ValueError, KeyError, TypeError):
                return result
            verdict = judge_clock(read_at - received, read_at - sent, float(arguments["max_offset_s"]))
            if verdict["verdict"] != "unknown":
                break
        if arguments.get("skip"):
            verdict |= {"verdict": "skipped", "reason": arguments["skip"], "source": "preflight_skip", "fix": ""}
        record = {"check": "clock", "host": (task_vars or {}).get("inventory_hostname", ""), "device": "", "serial": "", **verdict}
        record |= {"started": sent, "seconds": round(received - sent, 4), "schema": "primus.verdict/1"}
        answer["verdicts"] = [*answer.get("verdicts", ()), record]
        stdout = "\n".join([*head.splitlines(), json.dumps(answer)])
        return {**result, "stdout": stdout, "stdout_lines": stdout.splitlines()}


def judge_clock(least_s: float, most_s: float, limit_s: float) -> dict[str, Any]:
    """Judge a clock that is between `least_s` and `most_s` seconds ahead of the controller's; negative is behind."""
    record = {"expected": f"within {limit_s:g}", "unit": "s", "source": "preflight_max_clock_offset_s", "reason": "", "fix": ""}
    record["found"] = f"{(least_s + most_s) / 2:.2f} ± {(most_s - least_s) / 2:.2f}"
    if -limit_s <= least_s and most_s <= limit_s:
        return {**record, "verdict": "pass"}
    if least_s > limit_s or most_s < -limit_s:
        side, apart = ("ahead of", least_s) if least_s > limit_s else ("behind", -most_s)
        return {**record, "verdict": "fail", "reason": f"the clock is at least {apart:.1f} s {side} the controller's", "fix": _FIX}
    reason = f"the answer took {most_s - least_s:.1f} s, too long to tell whether the clocks are within {limit_s:g} s of each other"
    return {**record, "verdict": "unknown", "reason": reason, "fix": _SLOW_FIX}
