"""What the trainer does when something breaks: real signals, real damage, real hangs."""

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


def test_sigterm_to_one_rank_ends_all_with_a_checkpoint_and_75(tmp_path: Path) -> None:
    """A node that is asked to stop is enough: all ranks agree on the step, write a checkpoint, and say 75."""
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
    """Train without a break, keeping two checkpoints."""
    return train(tmp_path_factory.mktemp("whole"), 1, *DENSE, "checkpoint.keep=2")


@pytest.mark.parametrize("damage", ["flip", "cut", "lose", "manifest"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(whole: Run, tmp_path: Path, damage: str) -> None:
    """A bit that has flipped, a file cut short or lost, or a broken manifest: the run goes on from the checkpoint before, and says why."""
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
    again = train(tmp_path, 1, *DENSE, "checkpoint.keep=2")

    assert "step-00000008 is damaged" in again.outputs[0]
    assert "step 6, sequence 48" in again.outputs[0]
    assert again.losses() == whole.losses()[6:]
    assert again.checkpoints() == ["latest", "step-00000006", "step-00000008", "step-00000008.corrupt"]


@pytest.mark.parametrize("trouble", ["input/output error", "another format"])
def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(whole: Run, tmp_path: Path, trouble: str) -> None:
    """Storage that fails, or a newer program's format, says nothing about the checkpoint: the run ends with 74 and renames nothing."""
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    newest = tmp_path / "checkpoints/step-00000008"
    if trouble == "another format":
        (newest / "manifest.json").write_text('{"format": 99}')
    else:
        victim = next(newest.glob("*.distcp"))
        victim.unlink()
        victim.symlink_to("/proc/self/mem")  # whose first page is not there: EIO
    run = Ranks(tmp_path, 2, *DENSE, "checkpoint.keep=2").wait()

    assert run.codes == [74, 74], run.outputs
    assert "cannot read it" in run.outputs[0]
    assert run.checkpoints() == whole.checkpoints()


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_over(whole: Run, tmp_path: Path) -> None:
    """Weeks of training are not thrown away in silence: 74, and again 74 when a watcher tries again; `never` starts over."""
    shutil.copytree(whole.folder / "checkpoints", tmp_path / "checkpoints")
    for victim in tmp_path.glob("checkpoints/*/manifest.json"):
        victim.write_text("{}")
    for _ in range(2):
        run = Ranks(tmp_path, 1, *DENSE, "checkpoint.keep=2").wait()

        assert run.codes == [74], run.outputs
        assert "no usable checkpoint is left, only step-00000006.corrupt, step-00000008.corrupt" in run.outputs[0]
    assert train(tmp_path, 1, *DENSE, "checkpoint.resume=never").losses() == whole.losses()


def test_a_run_resumed_from_a_path_does_not_go_back_to_it_after_a_failure(whole: Run, tmp_path: Path) -> None:
    """The path counts once, also where it was removed since; the losses are those of a run without a break."""
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


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_rank(tmp_path: Path) -> None:
    """NaN in one rank ends all with 76, names that rank and step, and leaves the checkpoint before it as the newest."""
    run = Ranks(tmp_path, 2, *DENSE, "drill.kind=nan", "drill.step=4", "drill.rank=1").wait()

    assert run.codes == [76, 76], run.outputs
    assert "pretrain: rank 0: loss is not finite (nan) at step 4, first on rank 1; the newest checkpoint is of step 2" in run.outputs[0]
    assert "\n  fix: " in run.outputs[0]
    assert (tmp_path / "checkpoints/latest").read_text() == "step-00000002\n"


def test_a_gradient_that_grows_beyond_numbers_stops_the_run(tmp_path: Path) -> None:
    """A learning rate that is far too high ends with 76, not with weights full of NaN."""
    run = Ranks(tmp_path, 1, *DENSE, "optimizer.lr=1e30", "train.clip_norm=0").wait()

    assert run.codes == [76], run.outputs


def test_a_rank_that_hangs_ends_the_run(tmp_path: Path) -> None:
    """Each rank ends itself after its limit and says in which phase it stood; the one that hung is the one outside an exchange."""
    limits = ("watchdog.step_timeout_s=4", "watchdog.startup_timeout_s=60")
    run = Ranks(tmp_path, 2, *DENSE, *limits, "drill.kind=hang", "drill.step=3", "drill.rank=1").wait()

    assert run.codes == [77, 77], run.outputs
    assert "step 3, phase data" in run.outputs[1]
    assert "step 3, phase forward_backward" in run.outputs[0]
    assert "drill.py" in run.outputs[1]
    assert run.steps()[-1]["step"] == 2


def test_a_stopped_process_does_not_hold_its_peers(tmp_path: Path) -> None:
    """SIGSTOP leaves a rank alive and silent; the other one ends by its watchdog."""
    ranks = Ranks(tmp_path, 2, *LONG, "watchdog.step_timeout_s=3", "watchdog.startup_timeout_s=60")
    ranks.wait_for("step 2 ")
    ranks.signal(1, signal.SIGSTOP)
    ranks.processes[0].join(60)
    ranks.signal(1, signal.SIGKILL)

    assert ranks.wait().codes == [77, -9]


def test_a_run_killed_in_the_middle_goes_on_with_the_same_losses(whole: Run, tmp_path: Path) -> None:
    """SIGKILL at any moment, also while a checkpoint is written, costs the steps since the newest complete one and nothing else."""
    ranks = Ranks(tmp_path, 1, *DENSE, "drill.kind=slow", "drill.step=6", "drill.slow_s=10")
    ranks.wait_for("step 5 ")
    ranks.signal(0, signal.SIGKILL)
    ranks.wait()
    run = train(tmp_path, 1, *DENSE)

    assert "resumed from" in run.outputs[0]
    assert run.losses() == whole.losses()
    assert not [name for name in run.checkpoints() if name.endswith(".partial")]


def test_a_full_disk_fails_checkpoints_and_then_the_run(tmp_path: Path) -> None:
    """Checkpoints that cannot be written are told of and tried again; after the allowed number the run ends with 74 and the reason."""
    run = Ranks(tmp_path, 2, *DENSE, "checkpoint.failures_allowed=1", largest_file=100_000).wait()

    assert run.codes == [74, 74], run.outputs
    assert "step 2 could not be written" in run.outputs[0]
    assert "2 checkpoints in a row could not be written" in run.outputs[0]
    assert "File too large" in run.outputs[0]
    assert run.checkpoints() == []


def test_the_watchdog_lets_a_slow_step_pass(tmp_path: Path) -> None:
    """A step below the limit is no hang."""
    started = time.monotonic()
    run = train(tmp_path, 1, *DENSE, "train.steps=3", "drill.kind=slow", "drill.step=2", "drill.slow_s=2", "watchdog.step_timeout_s=4")

    assert time.monotonic() - started > 4
    assert [round(line["data_wait_s"]) for line in run.steps()] == [0, 2, 2]


def test_a_line_that_was_cut_does_not_spoil_the_one_after_it(whole: Run, tmp_path: Path) -> None:
    """After a crash or a full disk the next line of steps.jsonl can be read, and nothing that somebody may have read is gone."""
    shutil.copytree(whole.folder, tmp_path, dirs_exist_ok=True)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"time": "2026-11-22T01:0')
    before = (tmp_path / "steps.jsonl").read_text()
    train(tmp_path, 1, *DENSE, "train.steps=9")
    after = (tmp_path / "steps.jsonl").read_text()

    assert after.startswith(before + "\n")
    assert json.loads(after.splitlines()[-1])["step"] == 9
