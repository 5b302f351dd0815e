"""workloads.bench on faulty devices: wrong results, hangs and errors are recorded as such."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.workloads.ranks import Ranks, Run
from tests.workloads.result_contract import read_results
from workloads.bench.trial import loss_decreases

if TYPE_CHECKING:
    from pathlib import Path

SHORT = ("--device=cpu", "--repeats=3", "--warm-up=1")
SMALL = ("--shapes=32x32x32", "--dtypes=fp32")


def bench(folder: Path, program: str, *words: str, ranks: int = 1) -> tuple[Run, list[dict[str, Any]]]:
    """Run `module:function`; return the run and its result lines."""
    run = Ranks(folder, ranks, *words, program=program).wait()
    return run, read_results(folder)


def test_a_wrong_product_is_recorded_as_not_correct(tmp_path: Path) -> None:
    """With its speed; the exit code is 1."""
    run, lines = bench(tmp_path, "tests.workloads.lying_device:gemm_wrong", *SHORT, *SMALL)

    assert run.codes == [1]
    assert [(line["correct"], line["error"], line["value"] > 0) for line in lines] == [(False, "", True)]
    assert "WRONG RESULT" in run.outputs[0]


@pytest.mark.parametrize("when", ["at_first", "later"])
def test_a_rank_that_receives_wrong_data_makes_the_result_wrong(tmp_path: Path, when: str) -> None:
    """Rank 0 writes the line, and rank 1 logs the error, before or after the timing. Other collectives are not affected."""
    words = (*SHORT, "--collectives=all_gather,all_to_all", "--smallest-kib=4", "--largest-kib=4")
    run, lines = bench(tmp_path, f"tests.workloads.lying_device:exchange_wrong_{when}", *words, ranks=2)

    assert run.codes == [1, 1]
    assert [(line["sizes"]["collective"], line["correct"]) for line in lines[::2]] == [("all_gather", True), ("all_to_all", False)]
    assert "collectives: rank 1 got a wrong result" in run.outputs[1]
    assert "wrong result" not in run.outputs[0]


def test_a_hanging_benchmark_ends_at_its_time_limit(tmp_path: Path) -> None:
    """The line contains the series without a value; exit code 77."""
    run, lines = bench(tmp_path, "tests.workloads.lying_device:gemm_stuck", *SHORT, *SMALL, "--timeout-s=1")

    assert run.codes == [77]
    assert [(line["sizes"]["m"], line["error"]) for line in lines] == [(32, "exceeded its time limit of 1 s")]
    assert "gemm_stuck" in run.outputs[0]  # the stack of the hang


def test_after_an_out_of_memory_error_the_other_series_are_measured(tmp_path: Path) -> None:
    """The failed series has an error, and the exit code is 1."""
    run, lines = bench(tmp_path, "tests.workloads.lying_device:memory_full", *SHORT, "--array-mib=1")

    assert run.codes == [1]
    assert [line["sizes"]["operation"] for line in lines] == ["copy", "scale", "triad"]
    assert lines[0]["error"].startswith("OutOfMemoryError: CUDA out of memory")
    assert [line["correct"] for line in lines[1:]] == [True, True]


def test_sigterm_ends_the_series_with_an_error(tmp_path: Path) -> None:
    """During the second series: it has no value, and the third is not started; exit code 143."""
    ranks = Ranks(tmp_path, 1, "--device=cpu", "--repeats=200", "--array-mib=16", program="tests.workloads.lying_device:scaling_told")
    ranks.wait_for("scaling")
    ranks.signal(0, signal.SIGTERM)
    run = ranks.wait()

    assert run.codes == [143], run.outputs
    lines = read_results(tmp_path)
    assert [(line["sizes"]["operation"], line["error"]) for line in lines] == [("copy", ""), ("scale", "stopped by SIGTERM")]


def test_sigterm_is_postponed_while_a_line_is_written(tmp_path: Path) -> None:
    """For the first of three lines and for the only line: the line is complete, and the benchmark ends."""
    words = ("--device=cpu", "--repeats=200", "--array-mib=16")
    run, lines = bench(tmp_path / "first", "tests.workloads.lying_device:memory_stopped_while_written", *words)
    only, line = bench(tmp_path / "only", "tests.workloads.lying_device:gemm_stopped_while_written", *SHORT, *SMALL)

    assert (run.codes, only.codes) == ([143], [143]), run.outputs + only.outputs
    assert lines[0]["sizes"]["operation"] == "copy"
    assert [one["error"] for one in lines] == ["", "stopped by SIGTERM"]
    assert [(one["metric"], one["error"]) for one in line] == [("tflop_per_s", ""), ("none", "stopped by SIGTERM")]


@pytest.mark.parametrize(
    ("program", "words", "error"),
    [
        ("gemm", ("--shapes=cube",), "--shapes cube: no such shape"),
        ("gemm", ("--dtypes=fp7",), "--dtypes fp7: no such type"),
        ("attention", ("--backends=quick",), "--backends quick: no such backend"),
        ("trial", ("--settings=train.micro_batch=3",), "train.global_batch (8) is not a multiple of 3"),
        ("storage", (), "--folder is missing"),
    ],
)
def test_a_wrong_option_is_an_error_with_a_fix(tmp_path: Path, program: str, words: tuple[str, ...], error: str) -> None:
    """Exit code 2 and a line with the error."""
    run, lines = bench(tmp_path, f"workloads.bench.{program}:main", "--device=cpu", *words)

    assert run.codes == [2]
    assert [line["error"][: len(error)] for line in lines] == [error]
    assert "\n  fix: " in run.outputs[0]


def test_an_unsupported_backend_in_the_options_is_an_error(tmp_path: Path) -> None:
    """`auto` skips it instead. The other backend is measured."""
    words = (*SHORT, "--length=32", "--heads=2", "--kv-heads=2", "--head-width=16", "--backends=cudnn,math")
    run, lines = bench(tmp_path, "workloads.bench.attention:main", *words)

    assert run.codes == [1]
    assert [(line["sizes"]["backend"], bool(line["error"])) for line in lines] == [
        ("cudnn", True),
        ("cudnn", True),
        ("math", False),
        ("math", False),
    ]


def test_a_loss_that_is_not_finite_is_a_wrong_result(tmp_path: Path) -> None:
    """The trainer stops at the NaN; the previous steps are recorded as not correct."""
    run, lines = bench(tmp_path, "workloads.bench.trial:main", "--device=cpu", "--settings=drill.kind=nan,drill.step=6")

    assert run.codes == [1]
    assert [(line["metric"], line["correct"], line["error"]) for line in lines] == [("tokens_per_s", False, ""), ("loss", False, "")]


def test_a_crashing_trainer_is_an_error(tmp_path: Path) -> None:
    """The line contains its exit code and no speed."""
    run, lines = bench(tmp_path, "workloads.bench.trial:main", "--device=cpu", "--settings=drill.kind=crash,drill.step=6")

    assert run.codes == [1]
    assert [(line["value"], line["error"].split(":")[0]) for line in lines] == [(None, "the trainer failed with exit code -9")]


def test_loss_decreases_compares_the_last_quarter_with_the_first() -> None:
    """False for constant, increasing and non-finite losses, and for too few."""
    down = [5.0, 4.9, 4.7, 4.8, 4.5, 4.6, 4.2, 4.3]

    assert [
        loss_decreases(losses) for losses in (down, down[::-1], [5.0] * 8, [*down[:-1], math.nan], [*down[:-1], -math.inf], down[:3])
    ] == [True, False, False, False, False, False]


IN_A_CALLBACK = """
import os, signal, time, weakref
from workloads.bench import _run

class Stopping(set):
    def discard(self, item):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)

class Thing:
    pass

signal.signal(signal.SIGTERM, _run._stop)
kept, thing = weakref.WeakSet(), Thing()
kept.add(thing)
kept.data = Stopping(kept.data)
try:
    del thing
    time.sleep(20)
except _run.StoppedError:
    print("stopped")
"""


def test_a_signal_during_a_weak_references_callback_stops_the_program() -> None:
    """Python ignores exceptions in such callbacks."""
    done = subprocess.run([sys.executable, "-c", IN_A_CALLBACK], capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout == "stopped\n", done.stderr
