"""Prove that this host's health is looked at: the timer runs, a fresh look is taken now, and the gate reads what it wrote.

Comes over standard input with the host's name as argument; prints `{"verdicts": [...]}`. Nothing of it stays on the host.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

GATE = "/usr/local/lib/primus/health_gate.py"
APPLY = "apply the phase gpu again"


def ask(*argv: str) -> tuple[int, str]:
    """Run a program; return its exit status and its output."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=600)
    return done.returncode, done.stdout.strip()


def record(host: str, check: str, verdict: str, **fields: str) -> dict[str, Any]:
    """Return one verdict record."""
    return {"check": check, "host": host, "verdict": verdict, "started": time.time(), "schema": "primus.verdict/1", **fields}


def verify(host: str) -> list[dict[str, Any]]:
    """Return the timer's record, the gate's, and those of health.json."""
    _, state = ask("systemctl", "is-active", "primus-health.timer")
    fields = {"expected": "active", "found": state, "source": "primus-health.timer"}
    good = state == "active"
    reason, fix = f"the timer is {state}, so health.json goes stale", f"systemctl enable --now primus-health.timer, or {APPLY}"
    timer = record(host, "health_timer", "pass" if good else "fail", **fields, **({} if good else {"reason": reason, "fix": fix}))
    before = time.time()
    _, started = ask("systemctl", "start", "primus-health.service")
    status, answer = ask("python3", "-I", GATE, "read", "--json")
    try:
        reading = json.loads(answer)
    except ValueError:
        reading = {"verdict": "unknown", "reason": f"{GATE} ended with {status}: {answer[-200:]}", "written": 0, "checks": []}
    fresh = reading["written"] >= before - 1
    if not fresh:
        reading = {
            **reading,
            "verdict": "unknown",
            "reason": f"no fresh health.json was written: {started or reading['reason']}",
            "checks": [],
        }
    found = record(
        host, "health_file", "pass" if fresh else "unknown", expected="written by this look, read by the gate", found=reading["verdict"]
    )
    if not fresh:
        found.update(reason=reading["reason"], fix=f"see `journalctl -u primus-health`; {APPLY}")
    return [timer, found, *reading["checks"]]


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"verdicts": verify(sys.argv[1])}) + "\n")
