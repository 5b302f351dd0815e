"""Run the health checks, each as a process, and write their results to health.json. The timer primus-health starts it.

    run_checks.py [--config /etc/primus/health_checks.json] [--out /var/lib/primus/health.json] [--locks /run/primus-health]
                  [--aside /run/primus-health-result/health.json]

It changes nothing else. A check that hangs, crashes or prints nothing is `unknown`. If the file system of --out is full or read-only, the
result is written to --aside, in memory. Exit codes: 0 if a file was written, whatever the verdict; 1 if none was, so that the old one
expires.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from atomic_files import write_atomic
from finding import FAIL, FIELDS, PASS, SKIPPED, UNKNOWN, finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from finding import Finding

    Record = dict[str, Any]

SCHEMA = "primus.health/1"
VERDICT_SCHEMA = "primus.verdict/1"
WORDS = (PASS, FAIL, UNKNOWN, SKIPPED)
# Time limit for the end of a killed check. A process that waits for a device or a dead server cannot be killed and is left behind.
KILL_WAIT_S = 2.0
# Checks that run once on a host.
SINGLE_CHECKS = ("clock", "memory_errors", "kernel_log", "gpu_count", "rdma_port")
# The validity of a result without a readable configuration.
DEFAULT_VALID_FOR_S = 300


class Check(NamedTuple):
    """A program `check_<name>.py` with its settings; `device` is the checked path, if there is one."""

    name: str
    device: str
    settings: dict[str, Any]


def main(arguments: list[str]) -> int:
    """Run the program; return its exit code."""
    parser = argparse.ArgumentParser(prog="run_checks", description="Run this host's health checks and write health.json.")
    parser.add_argument("--config", type=Path, default=Path("/etc/primus/health_checks.json"))
    parser.add_argument("--out", type=Path, default=Path("/var/lib/primus/health.json"))
    parser.add_argument("--locks", type=Path, default=Path("/run/primus-health"))
    parser.add_argument("--aside", type=Path, default=Path("/run/primus-health-result/health.json"))
    options = parser.parse_args(arguments)
    try:
        config = json.loads(options.config.read_text("utf-8"))
        records = [record for check in plan_checks(config) for record in run_one(check, config, options.locks)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        config = {}
        fix = "apply the phase gpu again, which writes the configuration"
        records = list(
            dated([finding("configuration", UNKNOWN, reason=f"{options.config} cannot be used: {error!r}", fix=fix)], "", time.time())
        )
    before = verdict_in(options.aside) or verdict_in(options.out)
    try:
        document = write_result(config, records, options.out, options.aside)
    except OSError as error:
        sys.stderr.write(f"<3>{options.out} cannot be written and expires: {error}\n")
        return 1
    if document["verdict"] != before:
        # The number is the level in the journal; 5 is a notice (sd-daemon(3)).
        sys.stdout.write(f"<5>health: {before or 'no verdict'} -> {document['verdict']}{summary(document['checks'])}\n")
    return 0


def write_result(config: dict[str, Any], records: list[Record], out: Path, aside: Path) -> dict[str, Any]:
    """Write health.json and return it. If that is impossible, write it to `aside`, with a record of the reason."""
    document = make_document(config, records)
    try:
        write_atomic(out, json.dumps(document, indent=1) + "\n", mode=0o644)
    except OSError as error:
        fix = f"free space on the file system of {out}; if it is read-only, see `journalctl -k`"
        unwritten = finding("result", UNKNOWN, device=str(out), reason=f"it cannot be written: {error.strerror}", fix=fix)
        document = make_document(config, [*records, *dated([unwritten], config.get("host", ""), time.time())])
        write_atomic(aside, json.dumps(document, indent=1) + "\n", mode=0o644)
    else:
        aside.unlink(missing_ok=True)
    return document


def plan_checks(config: dict[str, Any]) -> list[Check]:
    """Return the configured checks. Each path is a separate check, so that one that hangs does not affect the others."""
    disks = [Check("disk", path, {"path": path, **config["disk"]}) for path in config["disk_paths"]]
    mounts = [Check("mount", entry["path"], entry) for entry in config["mounts"]]
    units = {"units": config["units"], "managed": config["managed_units"]}
    daemons = [Check("unit", "", units)] if any(units.values()) else []
    return [*disks, *mounts, *daemons, *(Check(name, "", config[name]) for name in SINGLE_CHECKS)]


def run_one(check: Check, config: dict[str, Any], locks: Path) -> list[Record]:
    """Run one check, unless it is skipped; return its records."""
    started = time.time()
    reason = config["skip"].get(check.name)
    if reason is not None:
        found = [finding(check.name, SKIPPED, device=check.device, source="node_health_skip", reason=reason)]
    else:
        found = run_check(check.name, check.device, check.settings, float(config["timeout_s"]), locks)
    return list(dated(found, config["host"], started))


def run_check(name: str, device: str, settings: dict[str, Any], timeout_s: float, locks: Path) -> list[Finding]:
    """Run one check as a process and wait for it up to `timeout_s`."""
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    locks.chmod(0o700)  # an account that can open a lock file could hold the lock
    with (locks / f"{name}{device.replace('/', '-')}.lock").open("w") as lock:
        try:
            # The check inherits the lock. While a check that cannot be killed lives, no second one is started.
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
            return [no_answer(name, device, f"it did not finish within {timeout_s:g} s and was killed")]
    return read_answer(name, device, process.returncode, output, errors)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a check with its child processes, and wait up to KILL_WAIT_S for its end."""
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(KILL_WAIT_S)
    except subprocess.TimeoutExpired:
        process.returncode = -signal.SIGKILL  # it waits in the kernel; do not wait for it again


def read_answer(name: str, device: str, status: int, output: bytes, errors: bytes) -> list[Finding]:
    """Parse the records of a check; invalid output gives `unknown`."""
    try:
        found = json.loads(output)["verdicts"]
        if status == 0 and found and all(record["verdict"] in WORDS and record["check"] for record in found):
            return [{field: str(record.get(field, "")) for field in FIELDS} for record in found]
    except (ValueError, KeyError, TypeError):
        pass
    message = (errors.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
    return [no_answer(name, device, f"the check exited with {status}: {message[:200]}")]


def no_answer(name: str, device: str, reason: str) -> Finding:
    """Return the record of a check without a result."""
    fix = f"run it manually: python3 {Path(__file__).with_name(f'check_{name}.py')}; see `journalctl -u primus-health`"
    return finding(name, UNKNOWN, device=device, reason=reason, fix=fix)


def dated(found: Iterable[Finding], host: str, started: float) -> Iterable[Record]:
    """Add host, times and schema to records."""
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
    """Return the failed and unknown records in one line."""
    wrong = [f"{record['check']} {record['device']} {record['verdict']}: {record['reason']}" for record in records]
    return "".join(f"; {text}" for text, record in zip(wrong, records) if record["verdict"] in (FAIL, UNKNOWN))  # noqa: B905 (Python 3.9)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
