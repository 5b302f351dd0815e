#!/usr/bin/python3
"""Read this host's health.json and say whether it may be relied on: the one reader that schedulers and scripts use.

    health_gate.py [read] [--file /var/lib/primus/health.json] [--json]

Exit codes: 0 pass; 1 fail, with the reason on standard output; 3 unknown, with the reason: the file is missing, stale, of another
boot, or not to be read, or a check gave no answer. Unknown is not fail: leave the node as it is, and tell somebody.
As a module: `health_gate.read().verdict`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

HEALTH = Path("/var/lib/primus/health.json")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SCHEMA = "primus.health/1"
EXIT = {"pass": 0, "fail": 1, "unknown": 3}
# A file from the future means that the clock was set back; a little of it is only rounding and slewing.
FUTURE_S = 5.0
REASON_CHARS = 300


class Reading(NamedTuple):
    """What health.json says: `written` is seconds since the epoch (0 where it says nothing), `checks` are verdict records."""

    verdict: str
    reason: str
    written: float = 0.0
    checks: tuple[dict[str, Any], ...] = ()


def read(path: Path = HEALTH, *, now: float | None = None, boot_id: str | None = None) -> Reading:
    """Read and judge the file; whatever is wrong with it is unknown."""
    try:
        document = json.loads(path.read_text("utf-8"))
        written, valid_for_s, verdict = float(document["written"]), float(document["valid_for_s"]), document["verdict"]
        checks = tuple(dict(record) for record in document["checks"])
        boot = boot_id or BOOT_ID.read_text("utf-8").strip()
    except FileNotFoundError as error:
        return Reading("unknown", f"there is no {error.filename}: is the timer primus-health running?")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Reading("unknown", f"{path} cannot be read: {error!r}"[:REASON_CHARS])
    age_s = (time.time() if now is None else now) - written
    if document.get("schema") != SCHEMA or verdict not in EXIT:
        return Reading("unknown", f"{path} is no {SCHEMA} with a verdict that is known here", written)
    if document.get("boot_id") != boot:
        return Reading("unknown", f"{path} was written before this host last booted", written)
    if not -FUTURE_S <= age_s <= valid_for_s:
        when = f"{age_s:.0f} s old, more than {valid_for_s:.0f} s" if age_s > 0 else f"{-age_s:.0f} s in the future"
        return Reading("unknown", f"{path} is {when}: is the timer primus-health running?", written)
    return Reading(verdict, _reason(verdict, checks), written, checks)


def _reason(verdict: str, checks: tuple[dict[str, Any], ...]) -> str:
    """Name the checks behind a verdict in one line, short enough for a scheduler's reason field."""
    if verdict == "pass":
        return ""
    behind = [record for record in checks if record.get("verdict") == verdict]
    parts = [f"{record.get('check')} {record.get('device') or ''}".strip() + f": {record.get('reason')}" for record in behind]
    text = " ".join("; ".join(parts).split())
    return text if len(text) <= REASON_CHARS else f"{text[: REASON_CHARS - 3]}..."


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="primus-health", description="Say whether this host is healthy: 0 pass, 1 fail, 3 unknown.")
    parser.add_argument("command", nargs="?", choices=["read"], default="read")
    parser.add_argument("--file", type=Path, default=HEALTH)
    parser.add_argument("--json", action="store_true", help="print verdict, reason, time and records as one JSON object")
    options = parser.parse_args(arguments)
    reading = read(options.file)
    if options.json:
        sys.stdout.write(json.dumps(reading._asdict()) + "\n")
    else:
        sys.stdout.write((reading.reason or reading.verdict) + "\n")
    return EXIT[reading.verdict]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
