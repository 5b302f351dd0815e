"""Role `bench`, module `bench_node`: steps run as real processes."""

from __future__ import annotations

import fcntl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.child_processes import adopting_orphans
from tests.unit.test_role_bench_node import NODE

if TYPE_CHECKING:
    from collections.abc import Callable

    Jobs = Callable[..., None]


def is_running(pid: str) -> bool:
    """Return whether a process runs; a zombie does not."""
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def job_sequence(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Return a function that returns one list of jobs per call; the last one repeats."""

    def seen(*looks: list[str]) -> None:
        left = list(looks)
        monkeypatch.setattr(NODE, "running_jobs", lambda: left.pop(0) if len(left) > 1 else left[0])

    return seen


def test_hanging_step_is_ended_with_its_children(tmp_path: Path) -> None:
    """The step has an error, and neither process remains."""
    child = tmp_path / "child"
    script = f"import subprocess,time,sys; p=subprocess.Popen(['sleep','300']); open({str(child)!r},'w').write(str(p.pid)); time.sleep(300)"
    started = time.monotonic()
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 6}, tmp_path)

    assert done["error"] == "no answer within 6 s"
    assert time.monotonic() - started < 30
    assert not is_running(child.read_text())


def test_children_may_end_gracefully(tmp_path: Path) -> None:
    """The step's process ends at once. The step is over when its child finished the cleanup."""
    child = "trap 'sleep 1; touch tidy; exit' TERM; touch ready; while :; do sleep 0.1; done"
    script = f"import os,subprocess,time\nsubprocess.Popen(['bash', '-c', {child!r}])\nwhile not os.path.exists('ready'): time.sleep(0.05)"
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 20}, tmp_path)

    assert (done["code"], done["error"]) == (0, "")
    assert (tmp_path / "tidy").exists()


def test_ended_orphans_are_reaped(tmp_path: Path) -> None:
    """A process that adopts orphans, as the run's time limit does, must reap them."""
    script = "import os,subprocess,time\nsubprocess.Popen(['sleep', '300'])"
    started = time.monotonic()
    with adopting_orphans():
        NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 20}, tmp_path)

    assert time.monotonic() - started < NODE.GRACE_S


def test_step_returns_results_exit_code_and_output(tmp_path: Path) -> None:
    """Results may be anywhere below the step's folder."""
    write = "os.makedirs('{run}/out/a'); open('{run}/out/a/results.jsonl','w').write('one\\n\\ntwo\\n')"
    script = f"import os,sys; {write}; print('o'); sys.exit('e')"
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 30}, tmp_path)

    assert (done["code"], done["error"], done["results"]) == (1, "", ["one", "two"])
    assert (done["stdout"], done["stderr"]) == ("o\n", "e\n")


def test_temporary_files_stay_in_the_step_folder(tmp_path: Path) -> None:
    """No name below /tmp is used, where other accounts could plant code or locks."""
    script = "import tempfile; print(tempfile.gettempdir())"
    done = NODE.run_step({"name": "gemm", "argv": [sys.executable, "-c", script], "timeout_s": 30}, tmp_path)

    assert done["stdout"].strip() == str(tmp_path)


def test_missing_program_is_an_error(tmp_path: Path, job_sequence: Jobs) -> None:
    """The next step runs; both folders are removed."""
    job_sequence([])
    steps = [
        {"name": "a", "argv": ["/nowhere/primus-cli"], "timeout_s": 5, "alone": True},
        {"name": "b", "argv": [sys.executable, "-c", "print(1)"], "timeout_s": 30, "alone": True},
    ]
    first, second = NODE.measure(steps, tmp_path)

    assert first["error"] == "/nowhere/primus-cli: No such file or directory"
    assert second["stdout"] == "1\n"
    assert list(tmp_path.iterdir()) == []


def steps(*names: str, argv: tuple[str, ...] = ("true",)) -> list[dict[str, Any]]:
    """Return steps that must run alone on the host, except `preflight`."""
    return [{"name": name, "argv": list(argv), "timeout_s": 30, "alone": name != "preflight"} for name in names]


def test_exclusive_steps_are_skipped_beside_jobs(tmp_path: Path, job_sequence: Jobs) -> None:
    """Jobs are listed before each step. A new job is not disturbed; other steps still run."""
    job_sequence(["Slurm job 7"], ["Slurm job 7"], [])
    done = NODE.measure(steps("preflight", "gemm", "attention", argv=("sh", "-c", "touch ran; exit 3")), tmp_path)
    job_sequence([], [], ["Slurm job 8"])
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


def test_job_that_ended_is_recorded_with_its_step(tmp_path: Path, job_sequence: Jobs) -> None:
    """Only the step that ran beside it lists it; the next one runs alone."""
    job_sequence(["Slurm job 7"], [])
    done = NODE.measure(steps("preflight", "gemm"), tmp_path)

    assert [(one["error"], one["jobs"]) for one in done] == [("", ["Slurm job 7"]), ("", [])]


def test_tier_respects_its_time_limit(tmp_path: Path, job_sequence: Jobs) -> None:
    """The running step is ended and the others are skipped; each has an error."""
    job_sequence([])
    done = NODE.measure(steps("gemm", "attention", argv=("sleep", "20")), tmp_path, 0.5)

    assert [one["error"] for one in done] == [
        "the time of the tier was over, 0 s after its start",
        "the time of the tier was over before its start",
    ]
    assert sum(one["seconds"] for one in done) < 10


def test_leftovers_of_a_step_are_ended_before_jobs_are_listed(tmp_path: Path, job_sequence: Jobs) -> None:
    """Its own ranks do not count as jobs."""
    job_sequence([])
    order: list[str] = []
    NODE.measure(steps("gemm", "attention"), tmp_path, cleanup=lambda: order.append("tidy"))

    assert order == ["tidy", "tidy"]


def test_benches_on_one_host_exclude_each_other(tmp_path: Path) -> None:
    """The second one waits, then reports that the host is busy."""
    with (tmp_path / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with NODE.host_lock(tmp_path / "lock", 0.6) as free:
            assert free is False
    with NODE.host_lock(tmp_path / "lock", 0.6) as free:
        assert free is True
