"""Verify the health checks: the timer is active, and a run of the checks now writes a result that primus-health reads.

Ansible passes it through standard input, with the name of the host as argument. It prints `{"verdicts": [...]}`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

GATE = "/usr/local/lib/primus/health_gate.py"
APPLY = "apply the phase gpu again"


def run(*argv: str) -> tuple[int, str]:
    """Run a program; return its exit code and its output."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600)
    return done.returncode, done.stdout.strip()


def record(host: str, check: str, verdict: str, **fields: str) -> dict[str, Any]:
    """Return one verdict record."""
    return {"check": check, "host": host, "verdict": verdict, "started": time.time(), "schema": "primus.verdict/1", **fields}


def verify(host: str) -> list[dict[str, Any]]:
    """Return the records of the timer, of health.json, and of the checks in it."""
    _, state = run("systemctl", "is-active", "primus-health.timer")
    fields = {"expected": "active", "found": state, "source": "primus-health.timer"}
    active = state == "active"
    reason, fix = f"the timer is {state}, so health.json expires", f"systemctl enable --now primus-health.timer, or {APPLY}"
    timer = record(host, "health_timer", "pass" if active else "fail", **fields, **({} if active else {"reason": reason, "fix": fix}))
    before = time.time()
    _, started = run("systemctl", "start", "primus-health.service")
    status, answer = run("python3", "-I", GATE, "read", "--json")
    try:
        reading = json.loads(answer)
    except ValueError:
        reading = {"verdict": "unknown", "reason": f"{GATE} exited with {status}: {answer[-200:]}", "written": 0, "checks": []}
    fresh = reading["written"] >= before - 1
    if not fresh:
        reading = {
            **reading,
            "verdict": "unknown",
            "reason": f"no new health.json was written: {started or reading['reason']}",
            "checks": [],
        }
    found = record(host, "health_file", "pass" if fresh else "unknown", expected="a new result", found=reading["verdict"])
    if not fresh:
        found.update(reason=reading["reason"], fix=f"see `journalctl -u primus-health`; {APPLY}")
    return [timer, found, *reading["checks"]]


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"verdicts": verify(sys.argv[1])}) + "\n")
