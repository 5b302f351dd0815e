"""Print the quarantines that this host knows as one line of JSON. Reads only, and needs no root.

Of itself: its record and its health. On a Slurm controller also the records and Slurm states of all nodes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

STATE = Path("/var/lib/primus")
GATE = "/usr/local/lib/primus/health_gate.py"
CALL_S = 10
# Node, state, reason. A reason has no bar (filter_plugins/quarantine.py).
SINFO = ["sinfo", "--noheader", "--Node", "--format=%N|%T|%E"]


def read_json(path: Path) -> dict[str, Any]:
    """Return a record. An invalid file gives a record with the problem as reason, older than all other copies."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {**found, "owner": str(found["owner"]), "reason": str(found["reason"]), "time": float(found["time"])}
    except FileNotFoundError:
        return {}
    except KeyError as error:
        problem = f"it has no {error.args[0]}"
    except (OSError, ValueError, TypeError) as error:
        problem = str(error)
    return {"owner": "unknown", "reason": f"{path} cannot be read: {problem}", "time": 0, "unreadable": True}


def run(argv: list[str]) -> str:
    """Return the output of a program; empty if it is missing or times out."""
    try:
        return subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=CALL_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def health() -> dict[str, str]:
    """Return the verdict and the reason of the health of this host."""
    if not Path(GATE).exists():
        return {"verdict": "", "reason": "no health checks here"}
    try:
        reading = json.loads(run([sys.executable, "-I", GATE, "read", "--json"]))
    except ValueError:
        return {"verdict": "unknown", "reason": "primus-health does not answer"}
    return {"verdict": reading["verdict"], "reason": reading["reason"]}


def slurm() -> dict[str, list[str]]:
    """Return state and reason of every node, if this host is a controller."""
    controller = Path("/etc/slurm/nodes.d").is_dir()
    rows = [line.split("|", 2) for line in (run(SINFO) if controller else "").splitlines()]
    return {row[0].strip(): [row[1].strip(), row[2].strip()] for row in rows if len(row) == 3}


if __name__ == "__main__":
    records = {path.stem: read_json(path) for path in sorted((STATE / "quarantine").glob("*.json"))}
    answer = {"quarantine": read_json(STATE / "quarantine.json"), "health": health(), "records": records, "slurm": slurm()}
    print(json.dumps(answer))
