"""Run checks, each in a process of its own, several at a time: what hangs is killed with everything it started, and is `unknown`."""

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
from primus_bootstrap.launch.checks.model import PREFIX, CannotTellError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.checks.model import Check, Node

# How many at a time: vendor tools answer one another slowly, and a hanging one should not hold the others up.
_AT_A_TIME = 8
_GONE_S = 2.0  # how long a killed check, or one that has answered, may take to be gone
_CRASHED = 70  # EX_SOFTWARE of sysexits.h
_READ_BYTES = 65536
_SERIALS = PREFIX + "gpu_serial"


@dataclass
class _Running:
    """A check that has been started."""

    check: Check
    pid: int
    descriptor: int
    deadline: float
    began: float
    started: float
    said: bytearray = field(default_factory=bytearray)
    answered: bool = False


def run_checks(checks: Sequence[Check], node: Node, host: str) -> tuple[Verdict, ...]:
    """Return the records of the checks, in the checks' order."""
    waiting = list(enumerate(checks))
    running: dict[int, _Running] = {}
    found: dict[int, tuple[Verdict, ...]] = {}
    selector = selectors.DefaultSelector()
    try:
        while waiting or running:
            while waiting and len(running) < _AT_A_TIME:
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
        _answer(check, node, writer)
    os.close(writer)
    now = time.monotonic()
    return _Running(check, pid, reader, now + check.timeout_s, now, time.time())


def _answer(check: Check, node: Node, writer: int) -> NoReturn:
    """Look, write the records, and end: nothing of the caller's runs on in this copy of it."""
    code, text = _CRASHED, ""
    try:
        text = json.dumps([record.to_json() for record in look(check, node)])
        code = 0
    finally:
        remaining = (text or traceback.format_exc()).encode()
        while remaining:
            remaining = remaining[os.write(writer, remaining) :]
        os._exit(code)


def look(check: Check, node: Node) -> tuple[Verdict, ...]:
    """Look in this process; what cannot be had is unknown, for each record of the check."""
    try:
        reason = model.missing(check, node)
        if reason is None:
            return tuple(check.look(node))
    except CannotTellError as error:
        reason = model.unknown(error.reason, fix=error.fix)
    return tuple(replace(reason, check=name) for name in check.record_names)


def _ready(selector: selectors.BaseSelector, running: dict[int, _Running]) -> list[int]:
    """Wait for what has said everything or has had its time; return which."""
    patience = min(one.deadline for one in running.values()) - time.monotonic()
    done: list[int] = []
    for key, _ in selector.select(max(patience, 0.0)):
        one = running[key.data]
        said = os.read(one.descriptor, _READ_BYTES)
        one.said += said
        if not said:
            one.answered = True
            done.append(key.data)
    now = time.monotonic()
    done.extend(index for index, one in running.items() if one.deadline <= now and index not in done)
    return done


def _finish(one: _Running, host: str) -> tuple[Verdict, ...]:
    """Collect the process and return its records."""
    code = child_processes.wait_for(one.pid, _GONE_S) if one.answered else None
    reason = ""
    if code is None:
        gone = child_processes.kill_session(one.pid, _GONE_S)
        reason = f"it gave no answer within {one.check.timeout_s:g} s and " + (
            "was killed" if gone else f"cannot be killed (process {one.pid} waits in the kernel): it is left"
        )
    os.close(one.descriptor)
    records = _read(one, code) if not reason else None
    if records is None:
        words = one.said.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
        ending = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else str(code)
        reason = reason or f"the check ended with {ending}: {words[-1][:200]}"
        fix = f"run it alone: primus-cli preflight --checks {one.check.name}; see `journalctl -k`"
        records = tuple(Verdict(name, "", UNKNOWN, reason=reason, fix=fix) for name in one.check.record_names)
    seconds = round(time.monotonic() - one.began, 3)
    return tuple(replace(_tidy(record, one.check), host=host, started=one.started, seconds=seconds) for record in records)


def _tidy(record: Verdict, check: Check) -> Verdict:
    """Name a record; a pass has no reason, and only what is to be mended has a fix."""
    name = PREFIX + (record.check or check.record_names[0]).removeprefix(PREFIX)
    reason = "" if record.verdict == PASS else record.reason
    return replace(record, check=name, reason=reason, fix=record.fix if record.verdict in (FAIL, UNKNOWN) else "")


def _read(one: _Running, code: int | None) -> tuple[Verdict, ...] | None:
    """Return what a check said, None where that are no records. A check that says nothing at all has not looked."""
    if code != 0:
        return None
    records = tuple(Verdict(**data) for data in json.loads(one.said))
    return records or None


def _with_serials(records: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Give every record of a GPU the serial number that the check gpu_serial found for it."""
    serials = {record.device: record.serial for record in records if record.check == _SERIALS}
    return tuple(replace(record, serial=record.serial or serials.get(record.device, "")) for record in records)
