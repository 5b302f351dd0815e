"""Complete runs on prepared data: pre-training on text, then fine-tuning on examples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.workloads.ranks import Ranks, Run, train
from workloads.train import prepare_data

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long("workloads")
TEXT = "the quick brown fox jumps over the lazy dog; " * 60
MODEL = ("--config", "debug-dense", "train.steps=8", "optimizer.lr=1e-2")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Prepare text and train on it."""
    folder = tmp_path_factory.mktemp("pretrained")
    (folder / "text.txt").write_text(TEXT)
    assert prepare_data.main(["text", str(folder / "text.txt"), "--out", str(folder / "text")]) == 0
    return train(folder / "run", 2, *MODEL, "data.source=files", f"data.files={folder}/text.json")


def examples(folder: Path) -> str:
    """Prepare examples; return the path of the data set."""
    lines = [{"prompt": f"{number} is ", "response": "odd" if number % 2 else "even"} for number in range(64)]
    (folder / "examples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert prepare_data.main(["examples", str(folder / "examples.jsonl"), "--out", str(folder / "examples")]) == 0
    return str(folder / "examples.json")


def test_the_loss_on_text_decreases(pretrained: Run) -> None:
    """With the bytes tokenizer."""
    assert pretrained.losses()[-1] < pretrained.losses()[0] - 1


def test_fine_tuning_starts_from_pretrained_weights(pretrained: Run, tmp_path: Path) -> None:
    """It starts at step 1, and one and two ranks have the same losses with responses of different lengths."""
    data = ("data.source=files", f"data.files={examples(tmp_path)}", f"checkpoint.start_from={pretrained.folder}/checkpoints/step-00000008")
    two = train(tmp_path / "two", 2, *MODEL, *data, program="posttrain")
    one = train(tmp_path / "one", 1, *MODEL, *data, program="posttrain")
    scratch = train(tmp_path / "scratch", 1, *MODEL, *data[:2], "train.steps=1", program="posttrain")

    assert "weights from" in two.outputs[0]
    assert [step["step"] for step in two.steps()] == list(range(1, 9))
    assert two.losses()[-1] < two.losses()[0] - 1
    assert one.losses() == pytest.approx(two.losses(), rel=1e-5)
    assert two.losses()[0] != pytest.approx(scratch.losses()[0], rel=1e-3)


def test_a_compiled_model_has_the_same_losses(tmp_path: Path) -> None:
    """A compiled run can resume from an eager one, because torch.compile does not change the names in checkpoints."""
    arguments = (*MODEL, "compute.compile=true", "compute.compile_backend=aot_eager")
    plain = train(tmp_path / "plain", 1, *MODEL, "train.steps=4", "optimizer.decay_steps=8")
    compiled = train(plain.folder, 1, *arguments, "parallel.strategy=fsdp")
    whole = train(tmp_path / "whole", 1, *MODEL)

    assert "resumed from" in compiled.outputs[0]
    assert compiled.losses() == pytest.approx(whole.losses(), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("train.stepps=3",), 2, "did you mean train.steps?"),
        (("data.source=files", "data.files=gone.json"), 66, "gone.json: no such file"),
        (("checkpoint.resume=/gone",), 74, "/gone"),
        (("compute.device=cuda",), 2, "has no GPU"),
        (("compute.attention=cudnn",), 2, "compute.attention=cudnn does not work on cpu"),
    ],
)
def test_errors_at_the_start_have_an_exit_code_and_a_fix(tmp_path: Path, arguments: tuple[str, ...], code: int, expected: str) -> None:
    """Wrong settings, and missing data, checkpoints and devices, end the run before training."""
    run = Ranks(tmp_path, 1, *MODEL, *arguments).wait()

    assert run.codes == [code]
    assert expected in run.outputs[0]
    assert "pretrain: rank 0: " in run.outputs[0]
    assert "  fix: " in run.outputs[0]
    assert "Traceback" not in run.outputs[0]
    assert not (tmp_path / "steps.jsonl").exists()


def test_a_checkpoint_of_another_model_is_an_error(pretrained: Run, tmp_path: Path) -> None:
    """The message contains the difference."""
    path = pretrained.folder / "checkpoints/step-00000008"
    run = Ranks(tmp_path, 2, *MODEL, "model.layers=3", f"checkpoint.resume={path}").wait()

    assert run.codes == [2, 2]
    assert "is of another model: model.layers 2 -> 3" in run.outputs[0]
