"""`workload submit` while another run changes the cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.cli.report_view import running_text
from primus_bootstrap.cli.workload_verbs import _blames_running, _cause
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.lock import cluster_lock
from primus_bootstrap.engine.report import Failure, HostReport

if TYPE_CHECKING:
    from pathlib import Path

TOO_FEW = PlanError("only 0 hosts can be offered", fix="request fewer hosts")

FAILED = Failure("workload", "workload", "Check", "x.yml:1", "There is no /jfs. Fix: apply the phase storage.", "")


def test_a_refusal_during_an_apply_says_to_wait(tmp_path: Path) -> None:
    """What the job misses may be what the apply installs. Without a run, the error is as it was."""
    with cluster_lock(tmp_path, verb="apply", run="r1"), pytest.raises(PlanError) as during, _blames_running(tmp_path):
        raise TOO_FEW
    with pytest.raises(PlanError) as alone, _blames_running(tmp_path):
        raise TOO_FEW

    assert during.value.what == "only 0 hosts can be offered; apply (run r1) is running"
    assert during.value.fix == "wait until it has ended, then submit the job again"
    assert alone.value is TOO_FEW


def test_a_running_verb_is_named_with_its_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its run, the phase, and for how long."""
    monkeypatch.setattr("primus_bootstrap.cli.report_view.running_report", lambda _folder: object())
    monkeypatch.setattr("primus_bootstrap.cli.report_view.progress_text", lambda _report, now: f"phase 6 of 12, storage, for {now:.0f}s")
    with cluster_lock(tmp_path, verb="apply", run="r1"):
        during = running_text(tmp_path, 3.0)

    assert during == "apply (run r1) is running: phase 6 of 12, storage, for 3s"
    assert running_text(tmp_path, 3.0) == ""


@pytest.mark.parametrize(
    ("hosts", "cause"),
    [
        ((HostReport("n1", "failed", failures=(FAILED,)),), "There is no /jfs"),
        ((HostReport("n1", "not_reached"),), "its host was not reached"),
    ],
    ids=["failed", "not reached"],
)
def test_the_cause_of_a_failed_submission_has_no_fix(hosts: tuple[HostReport, ...], cause: str) -> None:
    """Its fix would repeat the run that is going on; the message says to wait."""
    report: Any = SimpleNamespace(hosts=hosts, problem="")

    assert _cause(report) == cause
