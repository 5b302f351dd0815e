"""primus_bootstrap.launch.checks.runner: checks that hang, crash, lie or stay in the kernel, in real processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from primus_bootstrap.launch.checks import runner
from primus_bootstrap.launch.checks.ask import ask
from primus_bootstrap.launch.checks.model import Check, Node, judged, passed, skipped
from primus_bootstrap.launch.detect import sysfs
from tests.unit.checks_rig import CHECKS, amd_machine, is_running, plain_machine
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict

FREEZER = Path("/sys/fs/cgroup/freezer")
HUNG_S = 1.0


def node(folder: Path, **environment: str) -> Node:
    """Return a node in a folder."""
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


def test_records_come_in_order_with_host_and_time(tmp_path: Path) -> None:
    """More checks than run at a time: each one's record is there, in the order of the checks, named and dated."""
    before = time.time()
    records = run(tmp_path, *(Check(f"c{index:02}", "", "", good) for index in range(20)))

    assert [record.check for record in records] == [f"preflight_c{index:02}" for index in range(20)]
    assert {record.host for record in records} == {"n1"}
    assert all(before <= record.started <= time.time() and 0 <= record.seconds < 60 for record in records)


def test_what_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    """A tool that hangs, its child, and a grandchild in a session of its own are gone; the verdict is unknown, the others keep theirs."""
    script = tmp_path / "smi"
    script.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/pids\nsetsid sh -c 'echo $$ >> {tmp_path}/pids; exec sleep 600' &\nsleep 600\n")
    script.chmod(0o755)

    def hang(given: Node) -> Iterator[Verdict]:
        yield passed(found=ask(given.environment, ["smi"]))

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
    assert records[0].reason == "it gave no answer within 1 s and was killed"
    assert time.monotonic() - began < 30
    assert (len(pids), [pid for pid in pids if is_running(pid)]) == (2, [])


def test_a_check_that_ignores_signals_is_killed_as_well(tmp_path: Path) -> None:
    """SIGTERM is not what ends it."""

    def stubborn(_node: Node) -> list[Verdict]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (tmp_path / "pid").write_text(str(os.getpid()))
        while True:
            time.sleep(1)

    (record,) = run(tmp_path, Check("stubborn", "", "", stubborn, timeout_s=HUNG_S))

    assert record.verdict == "unknown"
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_what_waits_in_the_kernel_is_left_and_said(tmp_path: Path) -> None:
    """A process that not even SIGKILL ends (here: frozen, as one that waits for a dead device) holds nobody up."""
    group = FREEZER / f"primus-test-{os.getpid()}"
    if not (FREEZER / "tasks").exists() or not os.access(FREEZER, os.W_OK):
        pytest.skip("this machine has no freezer of cgroup v1, the one way to make a process that cannot be killed")
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
        until(lambda: not (group / "tasks").read_text(), "the end of what was frozen", limit_s=30)
        group.rmdir()

    assert (stuck_one.verdict, fine.verdict, len(left)) == ("unknown", "pass", 1)
    assert "cannot be killed" in stuck_one.reason
    assert "it is left" in stuck_one.reason


def test_a_check_that_crashes_says_why(tmp_path: Path) -> None:
    """The last line of the traceback is the reason; nothing of the caller runs a second time in the child."""
    (tmp_path / "count").write_text("")
    (record,) = run(tmp_path, Check("broken", "", "", crash))
    with (tmp_path / "count").open("a") as file:
        file.write("once\n")

    assert (record.verdict, record.reason) == ("unknown", "the check ended with 70: KeyError: 'no such thing'")
    assert (tmp_path / "count").read_text() == "once\n"


def test_a_check_that_is_killed_from_outside_is_unknown(tmp_path: Path) -> None:
    """The kernel's out-of-memory killer, say."""

    def shot(given: Node) -> list[Verdict]:
        os.kill(os.getpid(), signal.SIGKILL)
        return good(given)

    (record,) = run(tmp_path, Check("shot", "", "", shot))

    assert (record.verdict, record.reason) == ("unknown", "the check ended with signal SIGKILL: it said nothing")


def test_a_check_that_says_nothing_has_not_looked(tmp_path: Path) -> None:
    """No record is no pass."""
    (record,) = run(tmp_path, Check("silent", "", "", lambda _node: []))

    assert record.verdict == "unknown"


def test_long_answers_arrive_whole(tmp_path: Path) -> None:
    """More than a pipe holds."""
    records = run(tmp_path, Check("long", "", "", lambda _node: [passed(found="x" * 1000, device=str(i)) for i in range(500)]))

    assert [record.device for record in records] == [str(index) for index in range(500)]


def test_only_what_did_not_pass_has_a_reason_and_a_fix(tmp_path: Path) -> None:
    """A pass has nothing to mend, whatever the check wrote beside it."""

    def told(_node: Node) -> list[Verdict]:
        fail = judged(good=False, reason="r", fix="f")
        return [fail, replace(fail, verdict="pass"), replace(skipped("s"), fix="f")]

    found = [(record.verdict, record.reason, record.fix) for record in run(tmp_path, Check("told", "", "", told))]

    assert found == [("fail", "r", "f"), ("pass", "", ""), ("skipped", "s", "")]


def test_every_record_of_a_gpu_bears_its_serial_number(tmp_path: Path) -> None:
    """What one check found out is given to the records of the others."""
    machine = amd_machine(tmp_path)
    records = runner.run_checks([CHECKS["gpu_pcie"], CHECKS["gpu_serial"]], machine.node(), "n1")
    serials = {record.device: record.serial for record in records if record.check == "preflight_gpu_pcie_width"}

    assert serials == {gpu: f"69242403{index:02}" for index, gpu in enumerate(machine.gpus)}


def snapshot(folder: Path) -> dict[str, tuple[float, bytes]]:
    """Return every file's time and content."""
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file()}


def test_no_check_changes_what_it_looks_at(tmp_path: Path) -> None:
    """Every check leaves every file of the node as it was, and makes none."""
    machine = plain_machine(tmp_path)
    whole = amd_machine(tmp_path / "amd")
    before = snapshot(tmp_path)
    for one in (machine, whole):
        runner.run_checks(tuple(CHECKS.values()), one.node(), "n1")

    assert snapshot(tmp_path) == before
