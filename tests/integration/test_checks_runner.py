"""primus_bootstrap.launch.checks.runner with checks that hang or crash, in real processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from primus_bootstrap.launch.checks import runner
from primus_bootstrap.launch.checks.model import Check, Node, pass_or_fail, passed, skipped
from primus_bootstrap.launch.checks.tools import run_tool
from primus_bootstrap.launch.detect import sysfs
from tests.unit.checks_rig import CHECKS, amd_machine, is_running, plain_machine
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict

FREEZER = Path("/sys/fs/cgroup/freezer")
HUNG_S = 1.0


def node(folder: Path, **environment: str) -> Node:
    """Return a node with this root."""
    return Node(sysfs.Host(folder), environment=environment)


def good(_node: Node) -> list[Verdict]:
    """Pass."""
    return [passed(found="1")]


def crash(_node: Node) -> NoReturn:
    """Crash."""
    raise KeyError("no such thing")


def run(folder: Path, *checks: Check, **environment: str) -> list[Verdict]:
    """Run checks on a node."""
    return list(runner.run_checks(checks, node(folder, **environment), "n1"))


def test_records_are_in_the_order_of_the_checks(tmp_path: Path) -> None:
    """Every record has a name, a host and times, also if there are more checks than run in parallel."""
    before = time.time()
    records = run(tmp_path, *(Check(f"c{index:02}", "", "", good) for index in range(20)))

    assert [record.check for record in records] == [f"preflight_c{index:02}" for index in range(20)]
    assert {record.host for record in records} == {"n1"}
    assert all(before <= record.started <= time.time() and 0 <= record.seconds < 60 for record in records)


def test_a_hanging_check_is_killed_with_its_descendants(tmp_path: Path) -> None:
    """Also a child in another session. The check is unknown; other checks are not affected."""
    script = tmp_path / "smi"
    script.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nsetsid sh -c 'echo $$ >> {tmp_path}/pids; exec sleep 600' &\nsleep 600\n")
    script.chmod(0o755)

    def hang(given: Node) -> Iterator[Verdict]:
        yield passed(found=run_tool(given.environment, ["smi"]))

    began = time.monotonic()
    records = run(
        tmp_path, Check("hung", "", "", hang, records=("a", "b"), timeout_s=HUNG_S), Check("fine", "", "", good), PATH=str(tmp_path)
    )
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]

    assert [(record.check, record.verdict) for record in records] == [
        ("preflight_a", "unknown"),
        ("preflight_b", "unknown"),
        ("preflight_fine", "pass"),
    ]
    assert records[0].reason == "no answer within 1 s; the check was killed"
    assert time.monotonic() - began < 30
    assert (len(pids), [pid for pid in pids if is_running(pid)]) == (2, [])


def test_a_check_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """The runner sends SIGKILL."""

    def stubborn(_node: Node) -> list[Verdict]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / "pid").write_text(str(os.getpid()))
        while True:
            time.sleep(1)

    (record,) = run(tmp_path, Check("stubborn", "", "", stubborn, timeout_s=HUNG_S))

    assert record.verdict == "unknown"
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_check_that_cannot_be_killed_does_not_block_the_others(tmp_path: Path) -> None:
    """A frozen process stands for a process that waits in the kernel for a dead device."""
    group = FREEZER / f"primus-test-{os.getpid()}"
    if not (FREEZER / "tasks").exists() or not os.access(FREEZER, os.W_OK):
        pytest.skip("this host has no cgroup v1 freezer, which the test needs for a process that cannot be killed")
    group.mkdir()

    def stuck(_node: Node) -> list[Verdict]:
        (group / "tasks").write_text("0")
        (group / "freezer.state").write_text("FROZEN")
        time.sleep(600)
        return []

    try:
        stuck_one, fine = run(tmp_path, Check("stuck", "", "", stuck, timeout_s=HUNG_S), Check("fine", "", "", good))
        left = [int(pid) for pid in (group / "tasks").read_text().split()]
    finally:
        (group / "freezer.state").write_text("THAWED")
        until(lambda: not (group / "tasks").read_text(), "the end of the frozen process", limit_s=30)
        group.rmdir()

    assert (stuck_one.verdict, fine.verdict, len(left)) == ("unknown", "pass", 1)
    assert "cannot be killed" in stuck_one.reason


def test_a_crashing_check_is_unknown_with_its_exception(tmp_path: Path) -> None:
    """The child does not run code of the caller."""
    (tmp_path / "count").write_text("")
    (record,) = run(tmp_path, Check("broken", "", "", crash))
    with (tmp_path / "count").open("a") as file:
        file.write("once\n")

    assert (record.verdict, record.reason) == ("unknown", "the check ended with exit code 70: KeyError: 'no such thing'")
    assert (tmp_path / "count").read_text() == "once\n"


def test_a_check_that_is_killed_from_outside_is_unknown(tmp_path: Path) -> None:
    """For example by the kernel's out-of-memory killer."""

    def shot(given: Node) -> list[Verdict]:
        os.kill(os.getpid(), signal.SIGKILL)
        return good(given)

    (record,) = run(tmp_path, Check("shot", "", "", shot))

    assert (record.verdict, record.reason) == ("unknown", "the check ended with signal SIGKILL: no output")


def test_a_check_without_records_is_unknown(tmp_path: Path) -> None:
    """Not a pass."""
    (record,) = run(tmp_path, Check("silent", "", "", lambda _node: []))

    assert record.verdict == "unknown"


def test_long_output_is_read_completely(tmp_path: Path) -> None:
    """It exceeds the buffer of a pipe."""
    records = run(tmp_path, Check("long", "", "", lambda _node: [passed(found="x" * 1000, device=str(i)) for i in range(500)]))

    assert [record.device for record in records] == [str(index) for index in range(500)]


def test_a_pass_has_no_reason_and_no_fix(tmp_path: Path) -> None:
    """The runner removes them."""

    def three(_node: Node) -> list[Verdict]:
        fail = pass_or_fail(good=False, reason="r", fix="f")
        return [fail, replace(fail, verdict="pass"), replace(skipped("s"), fix="f")]

    found = [(record.verdict, record.reason, record.fix) for record in run(tmp_path, Check("three", "", "", three))]

    assert found == [("fail", "r", "f"), ("pass", "", ""), ("skipped", "s", "")]


def test_every_record_of_a_gpu_has_its_serial_number(tmp_path: Path) -> None:
    """The runner copies it from gpu_serial."""
    machine = amd_machine(tmp_path)
    records = runner.run_checks([CHECKS["gpu_pcie"], CHECKS["gpu_serial"]], machine.node(), "n1")
    serials = {record.device: record.serial for record in records if record.check == "preflight_gpu_pcie_width"}

    assert serials == {gpu: f"69242403{index:02}" for index, gpu in enumerate(machine.gpus)}


def snapshot(folder: Path) -> dict[str, tuple[float, bytes]]:
    """Return modification time and content of every file."""
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()}


def test_no_check_changes_a_file(tmp_path: Path) -> None:
    """No check creates, changes or removes a file."""
    machine = plain_machine(tmp_path)
    whole = amd_machine(tmp_path / "amd")
    before = snapshot(tmp_path)
    for one in (machine, whole):
        runner.run_checks(tuple(CHECKS.values()), one.node(), "n1")

    assert snapshot(tmp_path) == before
