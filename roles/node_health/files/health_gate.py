#!/usr/bin/python3
"""Read health.json of this host and return its verdict. Schedulers and scripts use this program only.

    health_gate.py [read] [--file /var/lib/primus/health.json] [--json]

Exit codes: 0 pass; 1 fail; 3 unknown. The reason is on standard output. The health is unknown if the file is missing, expired, unreadable
or of an earlier boot, or if a check had no result. Callers must not change a node because of an unknown health.
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
# Written instead of the file while its file system is full or read-only.
ASIDE = Path("/run/primus-health-result/health.json")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SCHEMA = "primus.health/1"
EXIT = {"pass": 0, "fail": 1, "unknown": 3}
# A larger time in the future means that the clock was set back.
FUTURE_S = 5.0
REASON_CHARS = 300


class Reading(NamedTuple):
    """The content of health.json: `written` is in seconds since the epoch (0 if unknown), `checks` are verdict records."""

    verdict: str
    reason: str
    written: float = 0.0
    checks: tuple[dict[str, Any], ...] = ()


def read(path: Path = HEALTH, *, aside: Path = ASIDE, now: float | None = None, boot_id: str | None = None) -> Reading:
    """Read the newer one of both files; every problem with it gives `unknown`."""
    usual, other = (_read_file(one, now, boot_id) for one in (path, aside))
    return other if other.written > usual.written else usual


def _read_file(path: Path, now: float | None, boot_id: str | None) -> Reading:
    try:
        document = json.loads(path.read_text("utf-8"))
        written, valid_for_s, verdict = float(document["written"]), float(document["valid_for_s"]), document["verdict"]
        checks = tuple(dict(record) for record in document["checks"])
        boot = boot_id or BOOT_ID.read_text("utf-8").strip()
    except FileNotFoundError as error:
        return Reading("unknown", f"{error.filename} does not exist; see `systemctl status primus-health.timer`")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Reading("unknown", f"{path} cannot be read: {error!r}"[:REASON_CHARS])
    age_s = (time.time() if now is None else now) - written
    if document.get("schema") != SCHEMA or verdict not in EXIT:
        return Reading("unknown", f"{path} does not have the schema {SCHEMA} or a known verdict", written)
    if document.get("boot_id") != boot:
        return Reading("unknown", f"{path} was written before this host last booted", written)
    if not -FUTURE_S <= age_s <= valid_for_s:
        when = f"{age_s:.0f} s old, more than {valid_for_s:.0f} s" if age_s > 0 else f"{-age_s:.0f} s in the future"
        return Reading("unknown", f"{path} is {when}; see `systemctl status primus-health.timer`", written)
    return Reading(verdict, _reason(verdict, checks), written, checks)


def _reason(verdict: str, checks: tuple[dict[str, Any], ...]) -> str:
    """Return the checks that cause the verdict in one line that fits into the reason field of a scheduler."""
    if verdict == "pass":
        return ""
    behind = [record for record in checks if record.get("verdict") == verdict]
    parts = [f"{record.get('check')} {record.get('device') or ''}".strip() + f": {record.get('reason')}" for record in behind]
    text = " ".join("; ".join(parts).split())
    return text if len(text) <= REASON_CHARS else f"{text[: REASON_CHARS - 3]}..."


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    about = "Print the health of this host. Exit codes: 0 pass, 1 fail, 3 unknown."
    parser = argparse.ArgumentParser(prog="primus-health", description=about)
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
