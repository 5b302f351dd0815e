"""The trainer under real signals, damaged checkpoints, hangs and full disks."""

from __future__ import annotations

import json
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.workloads.ranks import Ranks, Run, train

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long("workloads")
DENSE = ("--config", "debug-dense", "train.steps=8", "checkpoint.every_steps=2")
LONG = ("--config", "debug-dense", "train.steps=100000", "checkpoint.every_steps=0")


def test_sigterm_to_one_rank_stops_all_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    """All ranks stop after the same step with exit code 75, and the run can be resumed."""
    ranks = Ranks(tmp_path, 2, *LONG)
    ranks.wait_for("step 3 ")
    ranks.signal(1, signal.SIGTERM)
    run = ranks.wait()
    last = run.steps()[-1]["step"]

    assert run.codes == [75, 75], run.outputs
    assert (tmp_path / "checkpoints/latest").read_text() == f"step-{last:08d}\n"
    assert json.loads((tmp_path / "results.jsonl").read_text())["outcome"] == "stopped early"
    resumed = train(tmp_path, 2, *LONG, f"train.steps={last + 1}")
    assert resumed.steps()[-1]["step"] == last + 1
    assert f"resumed from {tmp_path}/checkpoints/step-{last:08d}" in resumed.outputs[0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train without interruption, with two checkpoints."""
    return train(tmp_path_factory.mktemp("whole"), 1, *DENSE, "checkpoint.keep=2")


@pytest.mark.parametrize("damage", ["flip", "cut", "lose", "manifest"])
def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(whole: Run, tmp_path: Path, damage: str) -> None:
    """A flipped bit, a truncated or missing file, or a damaged manifest; the output names the damaged checkpoint."""
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / "checkpoints/step-00000008"
    victim = newest / "manifest.json" if damage == "manifest" else next(newest.glob("*.distcp"))
    content = bytearray(victim.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    victim.write_bytes(content if damage == "flip" else content[:-100])
    if damage == "lose":
        victim.unlink()
    (tmp_path / "steps.jsonl").unlink()
    resumed = train(tmp_path, 1, *DENSE, "checkpoint.keep=2")

    assert "step-00000008 is damaged" in resumed.outputs[0]
    assert "step 6, sequence 48" in resumed.outputs[0]
    assert resumed.losses() == whole.losses()[6:]
    assert resumed.checkpoints() == ["latest", "step-00000006", "step-00000008", "step-00000008.corrupt"]


@pytest.mark.parametrize("trouble", ["input/output error", "another format"])
def test_an_unreadable_checkpoint_is_not_treated_as_damaged(whole: Run, tmp_path: Path, trouble: str) -> None:
    """The storage fails, or a newer program wrote the checkpoint: the run ends with 74, and nothing is renamed."""
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / "checkpoints/step-00000008"
    if trouble == "another format":
        (newest / "manifest.json").write_text('{"format": 99}')
    else:
        victim = next(newest.glob("*.distcp"))
        victim.unlink()
        victim.symlink_to("/proc/self/mem")  # reading its first page fails with EIO
    run = Ranks(tmp_path, 2, *DENSE, "checkpoint.keep=2").wait()

    assert run.codes == [74, 74], run.outputs
    assert "cannot read it" in run.outputs[0]
    assert run.checkpoints() == whole.checkpoints()


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(whole: Run, tmp_path: Path) -> None:
    """It ends with 74, also after a restart. `checkpoint.resume=never` starts over."""
    shutil.copytree(whole.folder / "checkpoints", tmp_path / "checkpoints")
    for victim in tmp_path.glob("checkpoints/*/manifest.json"):
        victim.write_text("{}")
    for _ in range(2):
        run = Ranks(tmp_path, 1, *DENSE, "checkpoint.keep=2").wait()

        assert run.codes == [74], run.outputs
        assert "no checkpoint is usable, only step-00000006.corrupt, step-00000008.corrupt exist" in run.outputs[0]
    assert train(tmp_path, 1, *DENSE, "checkpoint.resume=never").losses() == whole.losses()


def test_a_restart_does_not_resume_from_the_path_again(whole: Run, tmp_path: Path) -> None:
    """It resumes from its own checkpoints, also if the path was removed. The losses are those of an uninterrupted run."""
    shutil.copytree(whole.folder / "checkpoints/step-00000006", tmp_path / "origin/step-00000006")
    arguments = (*DENSE, "checkpoint.every_steps=1", "train.steps=9", "optimizer.decay_steps=8")
    path = f"checkpoint.resume={tmp_path}/origin/step-00000006"
    first = Ranks(tmp_path / "run", 1, *arguments, path, "drill.kind=crash", "drill.step=9").wait()
    shutil.rmtree(tmp_path / "origin")
    second = train(tmp_path / "run", 1, *arguments, path)

    assert "origin/step-00000006: step 6" in first.outputs[0]
    assert "run/checkpoints/step-0000000" in second.outputs[0]
    assert second.losses()[:2] == whole.losses()[6:]
    assert second.steps()[-1]["step"] == 9


def test_a_non_finite_loss_stops_the_run_with_the_rank(tmp_path: Path) -> None:
    """All ranks end with 76, and the newest checkpoint is from before."""
    run = Ranks(tmp_path, 2, *DENSE, "drill.kind=nan", "drill.step=4", "drill.rank=1").wait()

    assert run.codes == [76, 76], run.outputs
    assert "pretrain: rank 0: loss is not finite (nan) at step 4, first on rank 1; the newest checkpoint is of step 2" in run.outputs[0]
    assert "\n  fix: " in run.outputs[0]
    assert (tmp_path / "checkpoints/latest").read_text() == "step-00000002\n"


def test_a_diverging_gradient_stops_the_run(tmp_path: Path) -> None:
    """With a learning rate that is far too high, the run ends with 76."""
    run = Ranks(tmp_path, 1, *DENSE, "optimizer.lr=1e30", "train.clip_norm=0").wait()

    assert run.codes == [76], run.outputs


def test_a_rank_that_hangs_ends_the_run(tmp_path: Path) -> None:
    """Each rank ends at its time limit and reports its phase; the hanging rank is in the phase data."""
    limits = ("watchdog.step_timeout_s=4", "watchdog.startup_timeout_s=60")
    run = Ranks(tmp_path, 2, *DENSE, *limits, "drill.kind=hang", "drill.step=3", "drill.rank=1").wait()

    assert run.codes == [77, 77], run.outputs
    assert "step 3, phase data" in run.outputs[1]
    assert "step 3, phase forward_backward" in run.outputs[0]
    assert "fault_injection.py" in run.outputs[1]
    assert run.steps()[-1]["step"] == 2


def test_a_rank_ends_if_another_rank_is_frozen(tmp_path: Path) -> None:
    """After SIGSTOP to one rank, the watchdog ends the other one."""
    ranks = Ranks(tmp_path, 2, *LONG, "watchdog.step_timeout_s=3", "watchdog.startup_timeout_s=60")
    ranks.wait_for("step 2 ")
    ranks.signal(1, signal.SIGSTOP)
    ranks.processes[0].join(60)
    ranks.signal(1, signal.SIGKILL)

    assert ranks.wait().codes == [77, -9]


def test_a_killed_run_resumes_with_the_same_losses(whole: Run, tmp_path: Path) -> None:
    """SIGKILL may also come while a checkpoint is written."""
    ranks = Ranks(tmp_path, 1, *DENSE, "drill.kind=slow", "drill.step=6", "drill.slow_s=10")
    ranks.wait_for("step 5 ")
    ranks.signal(0, signal.SIGKILL)
    ranks.wait()
    run = train(tmp_path, 1, *DENSE)

    assert "resumed from" in run.outputs[0]
    assert run.losses() == whole.losses()
    assert not [name for name in run.checkpoints() if name.endswith(".partial")]


def test_a_full_disk_stops_the_run_after_the_allowed_failures(tmp_path: Path) -> None:
    """Failed checkpoints are reported and retried; then the run ends with 74 and the reason."""
    run = Ranks(tmp_path, 2, *DENSE, "checkpoint.failures_allowed=1", largest_file=100_000).wait()

    assert run.codes == [74, 74], run.outputs
    assert "step 2 could not be written" in run.outputs[0]
    assert "2 checkpoints in a row could not be written" in run.outputs[0]
    assert "File too large" in run.outputs[0]
    assert run.checkpoints() == []


def test_the_watchdog_does_not_end_a_slow_step_below_its_limit(tmp_path: Path) -> None:
    """The run completes."""
    started = time.monotonic()
    run = train(tmp_path, 1, *DENSE, "train.steps=3", "drill.kind=slow", "drill.step=2", "drill.slow_s=2", "watchdog.step_timeout_s=4")

    assert time.monotonic() - started > 4
    assert [round(line["data_wait_s"]) for line in run.steps()] == [0, 2, 2]


def test_a_truncated_line_does_not_affect_the_next_line(whole: Run, tmp_path: Path) -> None:
    """After a crash or a full disk, the next line of steps.jsonl is valid, and the existing content is unchanged."""
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"time": "2026-11-22T01:0')
    before = (tmp_path / "steps.jsonl").read_text()
    train(tmp_path, 1, *DENSE, "train.steps=9")
    after = (tmp_path / "steps.jsonl").read_text()

    assert after.startswith(before + "\n")
    assert json.loads(after.splitlines()[-1])["step"] == 9
