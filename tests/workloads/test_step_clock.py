"""workloads.backends.common.step_clock: time limits, phases and injected faults of the steps of a backend."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from workloads.backends.common.step_clock import StepClock, require_finite
from workloads.backends.megatron.log_lines import rejected_result
from workloads.common.errors import NotFiniteError, StorageError
from workloads.train.watchdog import Watchdog

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = {"watchdog.step_timeout_s": 10.0, "watchdog.startup_timeout_s": 60.0}


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """The steps and time limits that the watchdog gets."""
    found: list[tuple[int, float]] = []
    monkeypatch.setattr(Watchdog, "progress", lambda _self, step, *, limit_s: found.append((step, limit_s)))
    return found


def test_the_first_step_has_the_limit_of_the_start(limits: list[tuple[int, float]], tmp_path: Path) -> None:
    """It may compile. Later calls for the same step, one per micro-batch, do not restart its clock."""
    clock = StepClock("pretrain", LIMITS, tmp_path)
    for step in (7, 7, 8, 8, 9):
        clock.begin(step)

    assert limits == [(7, 60.0), (8, 10.0), (9, 10.0)]


def test_a_checkpoint_has_a_limit_of_its_own(limits: list[tuple[int, float]], tmp_path: Path) -> None:
    """The clock starts before it and again after it."""
    clock = StepClock("pretrain", LIMITS, tmp_path)
    clock.begin(1)
    clock.begin(2)

    assert clock.timed("checkpoint", lambda value: value + 1)(1) == 2
    assert limits[2:] == [(2, 10.0), (2, 10.0)]


def test_without_the_setting_there_is_no_limit(limits: list[tuple[int, float]], tmp_path: Path) -> None:
    """A backend may not support it, and 0 disables it."""
    for settings in ({}, {**LIMITS, "watchdog.step_timeout_s": 0.0}):
        clock = StepClock("pretrain", settings, tmp_path)
        clock.start()
        clock.begin(1)

    assert limits == [(1, 0.0), (1, 0.0)]


def test_an_error_ends_the_run_at_the_next_step(tmp_path: Path) -> None:
    """A thread that prints cannot raise it. The first one counts."""
    clock = StepClock("pretrain", {}, tmp_path)
    clock.begin(1)
    first = StorageError("the disk is full", fix="free space")
    clock.fail(first)
    clock.fail(StorageError("another", fix=""))

    with pytest.raises(StorageError) as raised:
        clock.begin(1)
    assert raised.value is first


def test_the_drill_spoils_one_step_of_one_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It leaves a mark, so that the resumed run has no fault."""
    monkeypatch.setenv("RANK", "1")
    drill = {"drill.kind": "nan", "drill.step": 2, "drill.rank": 1}
    spoiled = []
    for _ in range(2):
        clock = StepClock("pretrain", drill, tmp_path)
        for step in (1, 2, 3):
            clock.begin(step)
            spoiled.append(clock.spoils())
    monkeypatch.setenv("RANK", "0")
    (tmp_path / "drill.done").unlink()
    clock = StepClock("pretrain", drill, tmp_path)
    clock.begin(2)

    assert spoiled == [False, True, False, False, False, False]
    assert not clock.spoils()


@pytest.mark.parametrize(
    ("loss", "norm", "expected"),
    [
        (math.nan, 1.0, "loss is not finite (nan) at step 5, first on rank 3"),
        (1.0, math.inf, "gradient is not finite (inf) at step 5, first on rank 3"),
    ],
)
def test_a_value_that_is_not_finite_ends_the_run(loss: float, norm: float, expected: str) -> None:
    """With the words of the native trainer, which the diagnosis knows."""
    require_finite(5, 1.0, 1.0)
    with pytest.raises(NotFiniteError) as raised:
        require_finite(5, loss, norm, first_on=3)
    assert raised.value.what == expected


def test_an_error_of_megatron_about_nan_becomes_the_one_of_this_project() -> None:
    """Another error stays what it is."""
    text = "Rank 1, node gpu001, device 0, iteration 5: Unexpected result nan (message='found NaN in local grad norm for bucket #0')"
    found = rejected_result(RuntimeError(text), 4)

    assert found is not None
    assert found.what == "loss or gradient is not finite (found NaN in local grad norm for bucket #0) at step 4, first on rank 1"
    assert rejected_result(RuntimeError("CUDA error: out of memory"), 4) is None
