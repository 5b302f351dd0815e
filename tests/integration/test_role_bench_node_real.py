"""What the role `bench` looks at and runs on a host: the real module, made-up trees and real programs."""

from __future__ import annotations

import ctypes
import fcntl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.test_role_bench_node import NODE

if TYPE_CHECKING:
    from collections.abc import Callable

    Jobs = Callable[..., None]


def lives(pid: str) -> bool:
    """Return whether a process runs; one that only waits to be reaped does not."""
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Return how to say which jobs are seen, one look after the other; the last answer stays."""

    def seen(*looks: list[str]) -> None:
        left = list(looks)
        monkeypatch.setattr(NODE, "running_jobs", lambda: left.pop(0) if len(left) > 1 else left[0])

    return seen


def test_a_step_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    """It has an error, and neither it nor its child lives on."""
    child = tmp_path / "child"
    script = f"import subprocess,time,sys; p=subprocess.Popen(['sleep','300']); open({str(child)!r},'w').write(str(p.pid)); time.sleep(300)"
    started = time.monotonic()
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 6}, tmp_path)

    assert done["error"] == "no answer within 6 s"
    assert time.monotonic() - started < 30
    assert not lives(child.read_text())


def test_what_a_step_started_has_time_to_end_by_itself(tmp_path: Path) -> None:
    """The step's own process is gone at once; its child tidies up for a second, and only then is the step over."""
    child = "trap 'sleep 1; touch tidy; exit' TERM; touch ready; while :; do sleep 0.1; done"
    script = f"import os,subprocess,time\nsubprocess.Popen(['bash', '-c', {child!r}])\nwhile not os.path.exists('ready'): time.sleep(0.05)"
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 20}, tmp_path)

    assert (done["code"], done["error"]) == (0, "")
    assert (tmp_path / "tidy").exists()


def test_orphans_that_have_ended_are_not_waited_for(tmp_path: Path) -> None:
    """Where this process takes orphans in, as the one does that keeps the limit of a run over several hosts, it reaps them too."""
    script = "import os,subprocess,time\nsubprocess.Popen(['sleep', '300'])"
    prctl = ctypes.CDLL(None).prctl
    prctl(NODE._PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.monotonic()
    try:
        NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 20}, tmp_path)
    finally:
        prctl(NODE._PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    assert time.monotonic() - started < NODE.GRACE_S


def test_a_step_gives_its_results_its_exit_code_and_what_it_said(tmp_path: Path) -> None:
    """Results lie anywhere below its own folder."""
    write = "os.makedirs('{run}/out/a'); open('{run}/out/a/results.jsonl','w').write('one\\n\\ntwo\\n')"
    script = f"import os,sys; {write}; print('o'); sys.exit('e')"
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 30}, tmp_path)

    assert (done["code"], done["error"], done["results"]) == (1, "", ["one", "two"])
    assert (done["stdout"], done["stderr"]) == ("o\n", "e\n")


def test_a_step_keeps_its_temporary_files_in_its_own_folder(tmp_path: Path) -> None:
    """Nothing that it runs uses a name below /tmp, where another account could have put a cache of code or a lock for root."""
    script = "import tempfile; print(tempfile.gettempdir())"
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 30}, tmp_path)

    assert done["stdout"].strip() == str(tmp_path)


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path, jobs: Jobs) -> None:
    """And the next step runs; the folders of both are gone afterwards."""
    jobs([])
    steps = [
        {"name": "a", "argv": ["/nowhere/primus-cli"], "timeout_s": 5, "alone": True},
        {"name": "b", "argv": [sys.executable, "-c", "print(1)"], "timeout_s": 30, "alone": True},
    ]
    first, second = NODE.measure(steps, tmp_path)

    assert first["error"] == "/nowhere/primus-cli: No such file or directory"
    assert second["stdout"] == "1\n"
    assert list(tmp_path.iterdir()) == []


def steps(*names: str, argv: tuple[str, ...] = ("true",)) -> list[dict[str, Any]]:
    """Return steps, each of which must be alone on the host; not so `preflight`."""
    return [{"name": name, "argv": list(argv), "timeout_s": 30, "alone": name != "preflight"} for name in names]


def test_what_must_be_alone_is_left_out_beside_jobs(tmp_path: Path, jobs: Jobs) -> None:
    """Jobs are looked for again before each step: one that came since the look is not disturbed, and what runs after it is measured."""
    jobs(["Slurm job 7"], ["Slurm job 7"], [])
    done = NODE.measure(steps("preflight", "gemm", "attention", argv=("sh", "-c", "touch ran; exit 3")), tmp_path)
    jobs([], [], ["Slurm job 8"])
    later = NODE.measure(steps("preflight", "gemm", "attention", "storage"), tmp_path)

    assert [(one["code"], one["error"], one["jobs"]) for one in done] == [
        (3, "", ["Slurm job 7"]),
        (-1, "it was left out", ["Slurm job 7"]),
        (-1, "it was left out", ["Slurm job 7"]),
    ]
    assert [(one["error"], one["jobs"]) for one in later] == [
        ("", []),
        ("", ["Slurm job 8"]),
        ("it was left out", ["Slurm job 8"]),
        ("it was left out", ["Slurm job 8"]),
    ]


def test_a_job_that_has_ended_stands_with_the_step_that_it_was_beside(tmp_path: Path, jobs: Jobs) -> None:
    """What was looked at beside it says so; the next step has the host for itself."""
    jobs(["Slurm job 7"], [])
    done = NODE.measure(steps("preflight", "gemm"), tmp_path)

    assert [(one["error"], one["jobs"]) for one in done] == [("", ["Slurm job 7"]), ("", [])]


def test_a_tier_takes_no_longer_than_its_time(tmp_path: Path, jobs: Jobs) -> None:
    """A step is ended when the time is over, and what comes after it does not begin; each says so."""
    jobs([])
    done = NODE.measure(steps("gemm", "attention", argv=("sleep", "20")), tmp_path, 0.5)

    assert [one["error"] for one in done] == [
        "the tier's time was over, 0 s after it had begun",
        "the tier's time was over before it began",
    ]
    assert sum(one["seconds"] for one in done) < 10


def test_what_a_step_left_is_ended_before_jobs_are_looked_for(tmp_path: Path, jobs: Jobs) -> None:
    """Its own ranks are no job."""
    jobs([])
    order: list[str] = []
    NODE.measure(steps("gemm", "attention"), tmp_path, tidy=lambda: order.append("tidy"))

    assert order == ["tidy", "tidy"]


"""What the role `bench` looks at and runs on a host: the real module, made-up trees and real programs."""


def test_two_benches_on_one_host_exclude_each_other(tmp_path: Path) -> None:
    """The second waits, and says that it could not have the host."""
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with NODE.alone(tmp_path / "lock", 0.6) as free:
            assert free is False
    with NODE.alone(tmp_path / "lock", 0.6) as free:
        assert free is True
