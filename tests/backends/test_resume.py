"""A run that resumes from a backend's own checkpoint has the losses of the run that wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.backends.backend_rig import LIMIT_S, python_of, train

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.backend, pytest.mark.timeout(3 * LIMIT_S)]


@pytest.mark.parametrize("backend", ["megatron", "torchtitan"])
def test_a_resumed_run_has_the_same_losses(backend: str, tmp_path: Path) -> None:
    """The state of the optimizer is the same too: it decides the losses from the second step on."""
    python_of(backend)
    common = ("--config", "debug-dense", f"backend={backend}", "train.steps=7", "checkpoint.every_steps=3")
    folders = [tmp_path / name for name in ("whole", "resumed")]
    for folder in folders:
        folder.mkdir()
    whole = train(folders[0], *common, ranks=2)
    assert whole.code == 0, whole.output
    resumed = train(folders[1], *common, f"checkpoint.resume={whole.folder / 'checkpoints' / 'step-00000003'}", ranks=2)

    assert resumed.code == 0, resumed.output
    assert [record["step"] for record in resumed.lines("steps.jsonl")] == [4, 5, 6, 7]
    assert resumed.losses == pytest.approx(whole.losses[3:], rel=1e-4)
