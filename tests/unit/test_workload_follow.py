"""primus_bootstrap.cli.workload_follow: what the user sees while a job waits, and when the user stops looking."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.cli.workload_follow import follow_job
from primus_bootstrap.fleet.jobs import JobStatus, read_status

if TYPE_CHECKING:
    import pytest

ID = "try-0a1b2c"


class FakeClient:
    """Gives these answers in their order."""

    answering = "ctl1"

    def __init__(self, *answers: JobStatus | BaseException) -> None:
        """Store the answers."""
        self.cluster: Any = SimpleNamespace(path=Path("inventory/lab/hosts.yaml"))
        self.answers = list(answers)

    def show(self, job: str, *, events_from: int | None = None) -> JobStatus:
        """Return the next answer, or raise it."""
        assert (job, events_from) == (ID, 0)
        found = self.answers.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


def shown(phase: str, reason: str) -> JobStatus:
    """Return the status of a job."""
    return read_status({"job": {"id": ID, "name": "try", "user": "ada", "target": "slurm"}, "state": {"phase": phase, "reason": reason}})


def test_a_waiting_job_says_why_each_time_the_reason_changes(capsys: pytest.CaptureFixture[str]) -> None:
    """Once for each reason; a running job needs none."""
    down, priority = "Slurm job 7 is PENDING (Nodes required for job are DOWN)", "Slurm job 7 is PENDING (Priority)"
    answers = (shown("starting", down), shown("starting", down), shown("waiting", priority), shown("running", "step 3"), shown("done", ""))
    client = FakeClient(*answers)
    code = follow_job(client, ID, as_json=False, sleep=lambda _: None)

    assert code == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "  starting: " in line or ": Slurm" in line or "step 3" in line] == [
        f"-  starting: {down}",
        f"-  waiting: {priority}",
    ]


def test_an_interrupt_ends_the_command_and_not_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 130; the message says how to look at the job and how to stop it."""
    code = follow_job(FakeClient(KeyboardInterrupt()), ID, as_json=False, sleep=lambda _: None)

    assert code == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"{ID} continues; look at it: primus-bootstrap workload status inventory/lab/hosts.yaml {ID};"
        f" stop it: primus-bootstrap workload cancel inventory/lab/hosts.yaml {ID}"
    )
