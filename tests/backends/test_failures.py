"""What fails in a backend is diagnosed as in the native trainer, from the real output of the backends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.backends.backend_rig import LIMIT_S, python_of, train

if TYPE_CHECKING:
    from pathlib import Path

    from tests.backends.backend_rig import Trained

pytestmark = [pytest.mark.backend, pytest.mark.timeout(2 * LIMIT_S)]
NAN = ("drill.kind=nan", "drill.step=3", "drill.rank=1")
CASES = {
    "megatron-nan": ("megatron", 2, NAN, 76, "not_finite", "at step 3, first on rank 1"),
    "torchtitan-nan": ("torchtitan", 2, NAN, 76, "not_finite", "at step 3, first on rank 1"),
    "megatron-settings": ("megatron", 1, ("megatron.lr_warmup_fraction=0.5", "optimizer.warmup_steps=2"), 2, "settings_wrong", "warmup"),
    "torchtitan-layout": (
        "torchtitan", 2, ("torchtitan.parallelism.data_parallel_replicate_degree=3",), 2, "settings_wrong", "WORLD_SIZE(2)",
    ),
    "megatron-data": ("megatron", 1, ("data.source=files", "data.files=/nowhere/corpus"), 66, "data_missing", "/nowhere/corpus"),
    "torchtitan-data": ("torchtitan", 1, ("data.source=files", "data.files=/nowhere/corpus"), 66, "data_missing", "/nowhere/corpus"),
}  # fmt: skip


def cause_and_text(run: Trained) -> tuple[str, str]:
    """Return the cause that the diagnosis names, and the line that proves it."""
    found = json.loads((run.folder / "failure.json").read_text())
    return (found["cause"] or {}).get("name", "unknown"), found["evidence"][0]["text"] if found["evidence"] else run.output[-3000:]


@pytest.mark.parametrize("case", CASES)
def test_a_failure_has_the_cause_and_the_exit_code_of_the_native_trainer(case: str, tmp_path: Path) -> None:
    """The line that proves the cause names what is wrong."""
    backend, ranks, settings, code, cause, part = CASES[case]
    python_of(backend)
    run = train(
        tmp_path, "--config", "debug-dense", f"backend={backend}", "train.steps=6", "checkpoint.every_steps=2", *settings, ranks=ranks
    )
    found, text = cause_and_text(run)

    assert (found, run.code) == (cause, code), run.output[-6000:]
    assert part in text
