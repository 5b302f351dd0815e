"""Run this host's checks, one process each, and write what they found to health.json: what the timer primus-health starts.

    run_checks.py [--config /etc/primus/health_checks.json] [--out /var/lib/primus/health.json] [--locks /run/primus-health]

It observes and changes nothing else. A check that hangs, crashes or says nothing gives `unknown`. Exit codes: 0 the file was
written, whatever it says; 1 it could not be written, so that the old one goes stale.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finding import FAIL, FIELDS, PASS, SKIPPED, UNKNOWN, finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from finding import Finding

    Record = dict[str, Any]

SCHEMA = "primus.health/1"
VERDICT_SCHEMA = "primus.verdict/1"
WORDS = (PASS, FAIL, UNKNOWN, SKIPPED)
# How long a killed check may take to be gone; one that waits for a device or a dead server cannot be killed and is left behind.
GONE_S = 2.0
# What stands in the file where there is no configuration that could say how long it holds.
DEFAULT_VALID_FOR_S = 300


class Check(NamedTuple):
    """A program `check_<name>.py` with its settings; `device` is the path that it looks at, where it looks at one."""

    name: str
    device: str
    settings: dict[str, Any]


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="run_checks", description="Run this host's health checks and write health.json.")
    parser.add_argument("--config", type=Path, default=Path("/etc/primus/health_checks.json"))
    parser.add_argument("--out", type=Path, default=Path("/var/lib/primus/health.json"))
    parser.add_argument("--locks", type=Path, default=Path("/run/primus-health"))
    options = parser.parse_args(arguments)
    try:
        config = json.loads(options.config.read_text("utf-8"))
        records = [record for check in planned(config) for record in look(check, config, options.locks)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        config = {}
        fix = "apply the phase gpu again, which writes the configuration"
        records = list(
            dated([finding("configuration", UNKNOWN, reason=f"{options.config} cannot be used: {error!r}", fix=fix)], "", time.time())
        )
    before = verdict_in(options.out)
    document = make_document(config, records)
    try:
        replace(options.out, json.dumps(document, indent=1) + "\n")
    except OSError as error:
        sys.stderr.write(f"<3>{options.out} cannot be written and goes stale: {error}\n")
        return 1
    if document["verdict"] != before:
        # The number is the level in the journal: 5 is a notice (sd-daemon(3)).
        sys.stdout.write(f"<5>health: {before or 'no verdict'} -> {document['verdict']}{summary(records)}\n")
    return 0


def planned(config: dict[str, Any]) -> list[Check]:
    """Return the checks that the configuration asks for; each path is one of its own, so that one that hangs hides no other."""
    disks = [Check("disk", path, {"path": path, **config["disk"]}) for path in config["disk_paths"]]
    mounts = [Check("mount", entry["path"], entry) for entry in config["mounts"]]
    units = {"units": config["units"], "brought": config["brought_units"]}
    daemons = [Check("unit", "", units)] if any(units.values()) else []
    return [*disks, *mounts, *daemons, *(Check(name, "", config[name]) for name in ("clock", "memory_errors", "kernel_log", "gpu_count"))]


def look(check: Check, config: dict[str, Any], locks: Path) -> list[Record]:
    """Run one check, unless the site skips it; return its records."""
    started = time.time()
    reason = config["skip"].get(check.name)
    if reason is not None:
        found = [finding(check.name, SKIPPED, device=check.device, source="node_health_skip", reason=reason)]
    else:
        found = run_check(check.name, check.device, check.settings, float(config["timeout_s"]), locks)
    return list(dated(found, config["host"], started))


def run_check(name: str, device: str, settings: dict[str, Any], timeout_s: float, locks: Path) -> list[Finding]:
    """Run one check as a process of its own and wait for it, but not for ever."""
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    locks.chmod(0o700)  # whoever can open a lock may hold it
    with (locks / f"{name}{device.replace('/', '-')}.lock").open("w") as lock:
        try:
            # The check inherits it: as long as one that cannot be killed lives, no second one piles up behind it.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return [no_answer(name, device, "an earlier run of this check still hangs and cannot be killed")]
        program = Path(__file__).with_name(f"check_{name}.py")
        process = subprocess.Popen(
            [sys.executable, "-E", "-s", "-B", str(program)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, pass_fds=[lock.fileno()],
        )  # fmt: skip
        try:
            output, errors = process.communicate(json.dumps(settings).encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            end(process)
            return [no_answer(name, device, f"it gave no answer within {timeout_s:g} s and was killed")]
    return read_answer(name, device, process.returncode, output, errors)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a check with everything that it started, and wait a moment for it to go."""
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(GONE_S)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # it waits in the kernel; nobody is to wait for it


def read_answer(name: str, device: str, status: int, output: bytes, errors: bytes) -> list[Finding]:
    """Read the records that a check printed; what is no record is no answer."""
    try:
        found = json.loads(output)["verdicts"]
        if status == 0 and found and all(record["verdict"] in WORDS and record["check"] for record in found):
            return [{field: str(record.get(field, "")) for field in FIELDS} for record in found]
    except (ValueError, KeyError, TypeError):
        pass
    words = (errors.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"])[-1]
    return [no_answer(name, device, f"the check ended with {status}: {words[:200]}")]


def no_answer(name: str, device: str, reason: str) -> Finding:
    """Return the record of a check that could not look."""
    fix = f"run it by hand: python3 {Path(__file__).with_name(f'check_{name}.py')}; see `journalctl -u primus-health`"
    return finding(name, UNKNOWN, device=device, reason=reason, fix=fix)


def dated(found: Iterable[Finding], host: str, started: float) -> Iterable[Record]:
    """Complete records with host, times and schema."""
    seconds = round(time.time() - started, 3)
    for record in found:
        yield {**record, "host": host, "started": started, "seconds": seconds, "schema": VERDICT_SCHEMA}


def make_document(config: dict[str, Any], records: list[Record]) -> dict[str, Any]:
    """Return health.json: fail if anything fails, else unknown if anything is unknown, else pass."""
    words = {record["verdict"] for record in records}
    return {
        "schema": SCHEMA,
        "host": config.get("host", ""),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip(),
        "written": time.time(),
        "valid_for_s": config.get("valid_for_s", DEFAULT_VALID_FOR_S),
        "verdict": FAIL if FAIL in words else UNKNOWN if UNKNOWN in words else PASS,
        "checks": records,
    }


def verdict_in(path: Path) -> str:
    """Return the verdict of the last run, or an empty string."""
    try:
        return str(json.loads(path.read_text("utf-8"))["verdict"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def summary(records: list[Record]) -> str:
    """Say what is wrong, in one line."""
    wrong = [f"{record['check']} {record['device']} {record['verdict']}: {record['reason']}" for record in records]
    return "".join(f"; {text}" for text, record in zip(wrong, records) if record["verdict"] in (FAIL, UNKNOWN))  # noqa: B905 (Python 3.9)


def replace(path: Path, text: str) -> None:
    """Put a file in place of the old one at once: a reader sees the old text or the new one, after a crash as well."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
