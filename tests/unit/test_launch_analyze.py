"""primus_bootstrap.launch.diagnose.analyze: the summary of a run folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.diagnose import analyze
from primus_bootstrap.launch.ranks import rank_log
from primus_bootstrap.launch.snapshot import run_snapshot

if TYPE_CHECKING:
    from pathlib import Path


def step(number: int, seconds: float, loss: float) -> str:
    """Return one line of steps.jsonl."""
    data = {"step": number, "loss": loss, "step_time_s": seconds, "data_wait_s": seconds / 10, "checkpoint_wait_s": 0.0}
    return json.dumps({**data, "tokens_per_s": 1000 / seconds, "memory_peak_gib": 1.5, "mfu": None})


def run(folder: Path, exit_code: int = 0) -> Path:
    """Create a run folder with 2 ranks, a resume after step 5, and one slow step."""
    (folder / "logs").mkdir(parents=True)
    steps = [step(number, 9.0 if number == 1 else 0.1, 5.0 - number / 10) for number in range(1, 8)]
    steps += [step(number, 1.0 if number == 20 else 0.1, 5.0 - number / 10) for number in range(6, 21)]
    (folder / "steps.jsonl").write_text("\n".join(steps) + '\n{"step": 21, "lo')
    for name in ("step-00000020", "step-00000030"):  # the second one is incomplete
        (folder / "checkpoints" / name).mkdir(parents=True)
    (folder / "checkpoints/step-00000020/manifest.json").write_text("{}")
    (folder / "checkpoints/latest").write_text("step-00000030\n")
    for rank in (0, 1):
        data = {"node": "n1", "rank": rank, "world_size": 2, "local_rank": rank, "attempt": 0, "pid": 1, "started": 1000.0, "ended": 1060.0}
        rank_log.record_path(folder, rank).write_text(json.dumps({**data, "exit_code": exit_code * rank, "schema": rank_log.SCHEMA}))
    rank_log.log_path(folder, 1).write_text("OSError: [Errno 28] No space left on device\n")
    return folder


def test_the_speed_excludes_warm_up_steps(tmp_path: Path) -> None:
    """Slow steps and resumes are counted; of a repeated step the last one counts."""
    found = analyze.analyze(run(tmp_path / "A"))["training"]

    assert (found["first_step"], found["last_step"], found["resumed"]) == (1, 20, 1)
    assert (found["step_time_s"], found["tokens_per_s"], found["slow_steps"]) == (0.1, 10000.0, 1)
    assert found["data_share"] == pytest.approx(0.1)


def test_the_text_summarizes_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ends of the ranks, duration, loss, speed, and the last complete checkpoint."""
    assert analyze.main([str(run(tmp_path / "A"))]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "ranks       2 of 2 on 1 node: 2 done",
        "duration    60.0 s",
        "steps       1 to 20, resumed 1 times",
        "loss        4.9000 to 3.0000",
        "step time   median 0.100 s, p95 1.000 s, 1 slow (over 2 x median)",
        "waiting     10.0% for data, 0.0% for checkpoints",
        "speed       10,000 tokens/s, MFU unknown, peak memory 1.50 GiB",
        "checkpoint  step-00000020",
    ]


def test_the_text_of_a_failed_run_contains_the_diagnosis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same text as at the end of the run."""
    analyze.main([str(run(tmp_path / "A", exit_code=1))])
    out = capsys.readouterr().out

    assert "ranks       2 of 2 on 1 node: 1 done, 1 failed" in out
    assert "\n\nrank 1 on n1 failed first" in out
    assert "cause: a disk is full (disk_full)" in out


def test_json_is_an_object_for_one_run_and_a_list_for_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The failure is null for a successful run."""
    first, second = run(tmp_path / "A"), run(tmp_path / "B", exit_code=1)
    analyze.main([str(first), "--json"])
    one = json.loads(capsys.readouterr().out)
    analyze.main(["--json", str(first), str(second)])
    two = json.loads(capsys.readouterr().out)

    assert (one["failure"], one["checkpoint"]) == (None, "step-00000020")
    assert [item["failure"] and item["failure"]["cause"]["name"] for item in two] == [None, "disk_full"]


@pytest.mark.parametrize("words", [[], ["--json"], ["--wrong"], ["."]])
def test_a_folder_that_is_not_a_run_folder_is_an_error(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no folder is given."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        analyze.main(words)


@pytest.mark.parametrize("name", ["none", "x" * 300])
def test_a_path_that_cannot_exist_is_an_error_with_a_fix(tmp_path: Path, name: str) -> None:
    """A missing folder, and a name that is too long, for both commands that accept a run folder."""
    with pytest.raises(UsageError) as of_analyze:
        analyze.analyze(tmp_path / name)
    with pytest.raises(UsageError) as of_snapshot:
        run_snapshot.find(tmp_path / name)

    assert [str(tmp_path / name) in error.value.what for error in (of_analyze, of_snapshot)] == [True, True]
    assert "\n  fix: give" in str(of_analyze.value)
    assert "\n  fix: give" in str(of_snapshot.value)
