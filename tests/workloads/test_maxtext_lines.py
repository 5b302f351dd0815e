"""workloads.backends.maxtext without MaxText: its lines, the choice of a checkpoint, and the processes of several nodes."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from tests.workloads.test_backends import facts
from workloads.backends.common.checkpoint_marks import mark
from workloads.backends.common.step_clock import StepClock
from workloads.backends.common.step_writer import Step
from workloads.backends.maxtext import cpu_shim, log_lines
from workloads.backends.maxtext.checkpoints import Checkpoints
from workloads.common.errors import SettingsError, StorageError

CLOCK = StepClock("pretrain", {}, Path("run"))


def checkpoint(folder: Path, step: int) -> None:
    """Write what MaxText's checkpoint of a step looks like, with its mark."""
    (folder / log_lines.folder_name(step) / "items").mkdir(parents=True)
    mark(folder, step, backend="maxtext", content=log_lines.folder_name(step), keep=9)


@pytest.mark.parametrize("step", [Step(3, 5.25, 0.125, 1.5, 1e-05, 0.01), Step(3, 5.25, 0.125, None, 0.0, None)])
def test_the_line_of_a_step_is_read_back(step: Step) -> None:
    """Also without experts. Other lines are none."""
    assert log_lines.read_step(log_lines.step_line(step)) == step
    assert log_lines.read_step("completed step: 3, seconds: 0.125, loss: 5.250") is None


def test_a_loss_that_is_no_number_is_read() -> None:
    """The diagnosis needs the record."""
    found = log_lines.read_step(log_lines.step_line(Step(3, float("nan"), 0.1, float("inf"), 0.1, None)))

    assert found is not None
    assert math.isnan(found.loss)


def test_the_line_of_a_checkpoint_names_its_folder() -> None:
    """MaxText counts steps from 0."""
    assert log_lines.read_checkpoint(log_lines.saved_line(6, log_lines.folder_name(6))) == (6, "5")
    assert log_lines.read_checkpoint("Saved a checkpoint at step 5.") is None


def test_a_run_starts_from_a_mark_a_folder_of_checkpoints_or_a_checkpoint(tmp_path: Path) -> None:
    """All name the same folder of MaxText."""
    other = tmp_path / "other" / "checkpoints"
    checkpoint(other, 4)
    checkpoint(other, 6)
    newest = str(other / "5" / "items")

    for stated in (other / "step-00000006", other, other / "5", other / "5" / "items"):
        weights = Checkpoints(facts(start_from=str(stated)), tmp_path / "own", CLOCK).arguments()
        whole = Checkpoints(facts(resume=str(stated)), tmp_path / "own", CLOCK).arguments()
        assert weights == [f"load_parameters_path={newest}"]
        assert whole == [f"load_full_state_path={newest}"]
    assert Checkpoints(facts(), tmp_path / "own", CLOCK).arguments() == []


def test_a_missing_checkpoint_is_an_error(tmp_path: Path) -> None:
    """Before MaxText is imported."""
    with pytest.raises(StorageError, match="no complete checkpoint of MaxText"):
        Checkpoints(facts(start_from=str(tmp_path / "none")), tmp_path, CLOCK).arguments()


def test_a_run_that_must_not_resume_needs_an_empty_folder(tmp_path: Path) -> None:
    """MaxText would keep the old checkpoints instead of writing new ones."""
    checkpoint(tmp_path, 4)

    with pytest.raises(SettingsError, match="has checkpoints of step 4"):
        Checkpoints(facts(resume="never"), tmp_path, CLOCK).arguments()


def test_the_shim_is_loud(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the process its virtual devices."""
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_PLATFORMS", "")
    cpu_shim.install(8)

    assert "WARNING: THE CPU SHIM FOR TESTS IS ON" in capsys.readouterr().err
    assert os.environ["XLA_FLAGS"] == "--xla_force_host_platform_device_count=8"
    assert cpu_shim.arguments(["steps=1"]) == ["steps=1", "hardware=cpu", "attention=dot_product"]
