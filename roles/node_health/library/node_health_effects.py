#!/usr/bin/python
"""Ansible module `node_health_effects`: check the timer, run the health checks now, and return the new result as verdicts.

It changes nothing except health.json, which the timer also writes.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.host_programs import run_program
from ansible.module_utils.verdict_records import Verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Runner = Callable[[Sequence[str]], tuple[int, str]]

GATE = "/usr/local/lib/primus/health_gate.py"
# A run of the checks waits for each of them, up to its time limit.
RUN_S = 600.0
APPLY = "apply the phase gpu again"


def check_timer(verdicts: Verdicts, run: Runner) -> None:
    """Check that the timer is active; without it health.json expires."""
    _, state = run(["systemctl", "is-active", "primus-health.timer"])
    reason = f"the timer is {state}, so health.json expires"
    fix = f"systemctl enable --now primus-health.timer, or {APPLY}"
    verdicts.add("timer", "pass" if state == "active" else "fail", expected="active", found=state, reason=reason, fix=fix)


def read_health(run: Runner) -> dict[str, Any]:
    """Run the checks and return the new health.json; `unknown` with a reason if none was written."""
    before = time.time()
    _, started = run(["systemctl", "start", "primus-health.service"])
    status, answer = run(["python3", "-I", GATE, "read", "--json"])
    try:
        health = dict(json.loads(answer))
    except ValueError:
        health = {"reason": f"{GATE} exited with {status}: {answer[-200:]}", "written": 0}
    if health["written"] >= before - 1:
        return health
    return {"verdict": "unknown", "reason": f"no new health.json was written: {started or health['reason']}", "checks": []}


def verify(host: str, run: Runner) -> Verdicts:
    """Return the verdicts on the timer, on health.json, and of the checks in it."""
    verdicts = Verdicts("node_health", host)
    check_timer(verdicts, run)
    health = read_health(run)
    fix = f"see `journalctl -u primus-health`; {APPLY}"
    fresh = "pass" if "written" in health else "unknown"
    verdicts.add("result", fresh, expected="a new result", found=health["verdict"], reason=health["reason"], fix=fix)
    verdicts.records += health["checks"]
    return verdicts


def main() -> None:
    """Fail if a check fails."""
    module = AnsibleModule({"host": {"type": "str", "required": True}}, supports_check_mode=True)
    verify(module.params["host"], partial(run_program, timeout_s=RUN_S)).finish(module)


if __name__ == "__main__":
    main()
