"""Counts and texts of a report: skipped checks, reasons, and the seconds before the first phase."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.cli.report_view import print_report
from primus_bootstrap.core.verdicts import Outcome, Verdict
from primus_bootstrap.engine.events import Event, HostResult, PhaseFinished, PhaseStarted, Preparing, RunFinished, RunStarted, VerdictFound
from primus_bootstrap.engine.report import Report, report_from_events, report_from_json

if TYPE_CHECKING:
    import pytest

HOSTS = ("n1", "n2")
STEPS = tuple((phase, HOSTS) for phase in ("baseline", "verify"))
KERNEL = "the kernel belongs to the machine that runs this podman container"


def skipped(phase: str, check: str, host: str = "n1", *, word: Outcome = "skipped", reason: str = KERNEL, fix: str = "") -> VerdictFound:
    """Return a verdict that did not pass."""
    return VerdictFound(phase, Verdict(check, host, word, reason=reason, fix=fix))


def report_of(*events: Event) -> Report:
    """Return the report of a run of two phases."""
    done: list[Event] = [PhaseFinished("baseline", 20.0, ()), PhaseStarted("verify", 2, 2, HOSTS, 130.0), PhaseFinished("verify", 5.0, ())]
    report = report_from_events(
        [
            RunStarted("r", "apply", "blue", 100.0, STEPS),
            Preparing("checking the pinned host keys", 100.0),
            Preparing("starting Ansible", 103.0),
            PhaseStarted("baseline", 1, 2, HOSTS, 110.0),
            *events,
            *done,
            RunFinished(140.0, 0),
        ]
    )
    assert report
    return report


def test_a_check_that_a_later_phase_repeats_counts_once() -> None:
    """Another phase with the same result adds nothing; another result, device, reason or host does."""
    report = report_of(
        skipped("baseline", "sysctl.a"),
        skipped("baseline", "sysctl.b"),
        skipped("verify", "sysctl.a"),
        skipped("verify", "sysctl.b"),
        skipped("verify", "sysctl.b", "n2"),
        skipped("verify", "sysctl.a", reason="another reason"),
    )

    assert [host.verdict_counts for host in report.hosts] == [(0, 0, 0, 3), (0, 0, 0, 1)]
    assert [len(host.verdicts) for host in report.hosts] == [3, 1]


def test_one_phase_may_repeat_a_record() -> None:
    """Data that stay in two places after a reset are two records of one check."""
    report = report_of(skipped("baseline", "kept", reason="/srv/a"), skipped("baseline", "kept", reason="/srv/b"))

    assert report.hosts[0].verdict_counts == (0, 0, 0, 2)


def test_the_seconds_before_the_first_phase_are_recorded() -> None:
    """From the start of the run; a report of an earlier version has none."""
    report = report_of()
    data = report.to_json()
    old = {name: value for name, value in data.items() if name != "preparing_s"}

    assert report.preparing_s == 10.0
    assert report_from_json(data).preparing_s == 10.0
    assert report_from_json(old).preparing_s == 0.0


def test_each_reason_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With its checks, or the number of many, and its hosts; failures come first and keep their fixes."""
    sysctls = [skipped("baseline", f"baseline.sysctl.vm.key{number}", host) for number in range(26) for host in HOSTS]
    report = report_of(
        *sysctls,
        skipped("verify", "gpu.count", "n2", reason="no GPU"),
        skipped("verify", "gpu.links", "n2", reason="no GPU"),
        skipped("verify", "redis.answers", word="fail", reason="refused", fix="start it"),
    )
    print_report(report, Path("hosts.yaml"), everything=True)
    lines = capsys.readouterr().out.split("\n\n")[1].splitlines()

    assert lines == [
        "fail redis.answers on n1: refused",
        "  fix: start it",
        f"skipped 26 checks (baseline.sysctl.vm.*) on n1, n2: {KERNEL}",
        "skipped gpu.count, gpu.links on n2: no GPU",
    ]


def test_a_diff_says_what_would_change(capsys: pytest.CaptureFixture[str]) -> None:
    """It has changed nothing."""
    report = report_of(HostResult("n1", "baseline", "", "Write", "", "changed"))
    print_report(replace(report, verb="diff", hosts=(replace(report.hosts[0], result="changed"), report.hosts[1])), Path("hosts.yaml"))
    text = capsys.readouterr().out

    assert "n1    would change" in text
    assert "diff blue: 1 unchanged, 1 would change; " in text


def test_a_lost_host_of_the_lab_can_be_healed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of another cluster nobody knows what happened to it."""
    report = report_of()
    lost = replace(report, hosts=(replace(report.hosts[0], result="unreachable"), report.hosts[1]))
    print_report(lost, tmp_path / "hosts.yaml")
    without = capsys.readouterr().out
    (tmp_path / ".primus/blue").mkdir(parents=True)
    (tmp_path / ".primus/blue/lab.json").touch()
    print_report(lost, tmp_path / "hosts.yaml")
    text = " ".join(capsys.readouterr().out.split())

    assert "fault heal" not in without
    assert "n1 is a host of the lab; if it was broken on purpose:" in text
    assert f"lab fault heal n1 --name blue --dir {tmp_path}" in text
    assert "fault heal n2" not in text
