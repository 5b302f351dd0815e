"""Run checks in parallel, each in its own process. A check that exceeds its time limit is killed with its children and is `unknown`."""

from __future__ import annotations

import json
import os
import selectors
import signal
import time
import traceback
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from primus_bootstrap.core import child_processes
from primus_bootstrap.core.verdicts import FAIL, PASS, UNKNOWN, Verdict
from primus_bootstrap.launch.checks import model
from primus_bootstrap.launch.checks.model import PREFIX, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.checks.model import Check, Node

_PARALLEL = 8
_EXIT_S = 2.0  # how long a process may take to exit after its answer or after SIGKILL
_CRASHED = 70  # EX_SOFTWARE of sysexits.h
_READ_BYTES = 65536
_SERIALS = PREFIX + "gpu_serial"


@dataclass
class _Running:
    """A running check. `began` and `deadline` are monotonic times, `started` is in seconds since the epoch."""

    check: Check
    pid: int
    descriptor: int
    deadline: float
    began: float
    started: float
    output: bytearray = field(default_factory=bytearray)
    closed: bool = False


def run_checks(checks: Sequence[Check], node: Node, host: str) -> tuple[Verdict, ...]:
    """Run the checks on this node; return their records in the order of the checks."""
    waiting = list(enumerate(checks))
    running: dict[int, _Running] = {}
    found: dict[int, tuple[Verdict, ...]] = {}
    selector = selectors.DefaultSelector()
    try:
        while waiting or running:
            while waiting and len(running) < _PARALLEL:
                index, check = waiting.pop(0)
                running[index] = _start(check, node)
                selector.register(running[index].descriptor, selectors.EVENT_READ, index)
            for index in _ready(selector, running):
                one = running.pop(index)
                selector.unregister(one.descriptor)
                found[index] = _finish(one, host)
    finally:
        for one in running.values():  # interrupted
            child_processes.kill_session(one.pid, 0.0)
            os.close(one.descriptor)
        selector.close()
    return _with_serials([record for index in sorted(found) for record in found[index]])


def _start(check: Check, node: Node) -> _Running:
    reader, writer = os.pipe()
    pid = child_processes.fork()
    if pid == 0:
        os.close(reader)
        _run_in_child(check, node, writer)
    os.close(writer)
    now = time.monotonic()
    return _Running(check, pid, reader, now + check.timeout_s, now, time.time())


def _run_in_child(check: Check, node: Node, writer: int) -> NoReturn:
    """Write the records, or the traceback, to the pipe and exit without running the caller's code in this child."""
    code, text = _CRASHED, ""
    try:
        text = json.dumps([record.to_json() for record in run_check(check, node)])
        code = 0
    finally:
        remaining = (text or traceback.format_exc()).encode()
        while remaining:
            remaining = remaining[os.write(writer, remaining) :]
        os._exit(code)


def run_check(check: Check, node: Node) -> tuple[Verdict, ...]:
    """Run a check in this process. If a prerequisite or a value is missing, every record of the check has that reason."""
    try:
        verdict = model.prerequisite_verdict(check, node)
        if verdict is None:
            return tuple(check.run(node))
    except UnavailableError as error:
        verdict = model.unknown(error.what, fix=error.fix)
    return tuple(replace(verdict, check=name) for name in check.record_names)


def _ready(selector: selectors.BaseSelector, running: dict[int, _Running]) -> list[int]:
    """Wait for checks that closed their pipe or passed their deadline; return their indices."""
    wait_s = min(one.deadline for one in running.values()) - time.monotonic()
    done: list[int] = []
    for key, _ in selector.select(max(wait_s, 0.0)):
        one = running[key.data]
        output = os.read(one.descriptor, _READ_BYTES)
        one.output += output
        if not output:
            one.closed = True
            done.append(key.data)
    now = time.monotonic()
    done.extend(index for index, one in running.items() if one.deadline <= now and index not in done)
    return done


def _finish(one: _Running, host: str) -> tuple[Verdict, ...]:
    """Wait for the process, or kill it; return its records."""
    code = child_processes.wait_for(one.pid, _EXIT_S) if one.closed else None
    reason = ""
    if code is None:
        killed = child_processes.kill_session(one.pid, _EXIT_S)
        reason = f"no answer within {one.check.timeout_s:g} s; the check " + (
            "was killed" if killed else f"cannot be killed, because process {one.pid} waits in the kernel"
        )
    os.close(one.descriptor)
    records = _parse(one, code) if not reason else None
    if records is None:
        lines = one.output.decode("utf-8", "replace").strip().splitlines() or ["no output"]
        ending = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        reason = reason or f"the check ended with {ending}: {lines[-1][:200]}"
        fix = f"run this check alone: primus-cli preflight --checks {one.check.name}; see `journalctl -k`"
        records = tuple(Verdict(name, "", UNKNOWN, reason=reason, fix=fix) for name in one.check.record_names)
    seconds = round(time.monotonic() - one.began, 3)
    return tuple(replace(_complete(record, one.check), host=host, started=one.started, seconds=seconds) for record in records)


def _complete(record: Verdict, check: Check) -> Verdict:
    """Add the name; remove the reason of a pass, and the fix if there is nothing to do."""
    name = PREFIX + (record.check or check.record_names[0]).removeprefix(PREFIX)
    reason = "" if record.verdict == PASS else record.reason
    return replace(record, check=name, reason=reason, fix=record.fix if record.verdict in (FAIL, UNKNOWN) else "")


def _parse(one: _Running, code: int | None) -> tuple[Verdict, ...] | None:
    """Return the records of a check, or None if it failed or returned no record."""
    if code != 0:
        return None
    records = tuple(Verdict(**data) for data in json.loads(one.output))
    return records or None


def _with_serials(records: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Add the serial number from gpu_serial to every record of a GPU."""
    serials = {record.device: record.serial for record in records if record.check == _SERIALS}
    return tuple(replace(record, serial=record.serial or serials.get(record.device, "")) for record in records)
