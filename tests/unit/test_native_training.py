"""primus_bootstrap.launch.training.native_training: settings that do not work together, and the estimate, before the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.tasks import Request
from primus_bootstrap.launch.training import training_task

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "workloads"
EIGHT_B = ("--config", "llama-3.1-8b")


def request(*arguments: str, gpu: str = "", ranks: int = 0, cwd: Path = Path()) -> Request:
    """Return a request of `train pretrain`."""
    return Request(arguments, "python3", lambda: WORKLOADS, cwd=cwd, gpu=gpu, ranks=ranks)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("parallel.pipeline=2",), "parallel.pipeline=2 and parallel.strategy=ddp do not work together"),
        ((*EIGHT_B, "parallel.tensor=8", "model.dropout=0.1"), "parallel.tensor=8 and model.dropout=0.1 do not work together"),
        ((*EIGHT_B, "parallel.pipeline=2", "checkpoint.export=/w"), "parallel.pipeline=2 and checkpoint.export=/w do not work together"),
        ((*EIGHT_B, "parallel.expert=2"), "parallel.expert=2 and model.experts=0 do not work together"),
        (("parallel.async_tensor=true",), "parallel.async_tensor=true and parallel.tensor=1 do not work together"),
    ],
)
def test_settings_that_do_not_work_together_are_an_error_before_the_start(arguments: tuple[str, ...], what: str) -> None:
    """With the values of presets and the defaults."""
    with pytest.raises(UsageError) as raised:
        training_task.check(request(*arguments))

    assert what in raised.value.what


def test_all_such_problems_are_reported_at_once() -> None:
    """Each with its fix."""
    with pytest.raises(UsageError) as raised:
        training_task.check(request("parallel.pipeline=2", "parallel.context=2", "compute.attention=cudnn"))

    assert raised.value.what.count("do not work together") == 2


def test_settings_are_compared_in_their_types(tmp_path: Path) -> None:
    """Arguments are texts, and a file may set the other setting."""
    (tmp_path / "mine.yaml").write_text("parallel: {strategy: fsdp}\n")

    assert training_task.check(request("--config", "mine.yaml", "parallel.pipeline=2", cwd=tmp_path)) == ()
    assert training_task.check(request("parallel.pipeline=1", "parallel.tensor=1", cwd=tmp_path)) == ()


def test_nothing_is_compared_if_a_file_is_on_the_hosts_only(tmp_path: Path) -> None:
    """It may have the setting that makes the values work."""
    elsewhere = replace(request("--config", "/data/mine.yaml", "parallel.pipeline=2", cwd=tmp_path), find=lambda _: None)

    assert len(training_task.check(elsewhere)) == 1


def test_a_run_that_fits_has_its_estimate_as_a_remark() -> None:
    """With memory, time and speed."""
    (remark,) = training_task.check(request(*EIGHT_B, gpu="H200", ranks=8))

    assert remark.startswith("estimate: fits, ")
    assert "GiB per H200" in remark


def test_a_run_that_does_not_fit_is_rejected() -> None:
    """With DDP, every rank has the whole optimizer state: 8 billion x 16 bytes and more."""
    arguments = (*EIGHT_B, "parallel.strategy=ddp")
    with pytest.raises(PlanError, match="does not fit into memory"):
        training_task.check(request(*arguments, gpu="H100", ranks=8))

    assert "This run may end out of memory" in training_task.check(request(*arguments, "estimate=warn", gpu="H100", ranks=8))[0]
    assert training_task.check(request(*arguments, "estimate=skip", gpu="H100", ranks=8)) == ("estimate: not computed (estimate=skip)",)


@pytest.mark.parametrize(
    ("arguments", "gpu", "ranks"),
    [(EIGHT_B, "", 8), (EIGHT_B, "H100", 0), ((*EIGHT_B, "compute.device=cpu"), "H100", 8), (("--config", "debug-dense"), "H100", 8)],
    ids=["no GPU", "unknown ranks", "on the CPU", "fp32"],
)
def test_nothing_is_estimated_where_the_estimate_does_not_apply(arguments: tuple[str, ...], gpu: str, ranks: int) -> None:
    """And the run is not rejected."""
    assert training_task.check(request(*arguments, gpu=gpu, ranks=ranks)) == ()
