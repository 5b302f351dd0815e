"""workloads.backends: what all backends share, and the lines of Megatron-LM. No backend is installed here."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.checkpoints import newest_complete
from workloads.backends.common import program
from workloads.backends.common.checkpoint_marks import mark, newest_step
from workloads.backends.common.output_tee import read_lines
from workloads.backends.common.run_facts import RunFacts, read_run_facts
from workloads.backends.common.step_writer import Device, Step, StepWriter
from workloads.backends.megatron import cpu_shim, log_lines, resume
from workloads.common.errors import SettingsError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

LINE = (
    " [2026-11-28 23:55:59.694562] iteration        6/      10 | consumed samples:           48 | elapsed time per iteration (ms): 301.8 |"
    " throughput per GPU (TFLOP/s/GPU): 0.0 | learning rate: 1.650000E-03 | global batch size:     8 | lm loss: 5.382158E+00 |"
    " load_balancing_loss: 1.002000E+00 | loss scale: 1.0 | grad norm: 0.842 | number of skipped iterations:   0 |"
)
SAVED = "  [2026-11-28 23:56:01.243153] successfully saved checkpoint from iteration      10 to /run/checkpoints [ t 1/1, p 1/1 ]"


def facts(**changed: object) -> RunFacts:
    """Return the facts of a small run."""
    values = {
        "backend": "megatron", "version": "0.19.2", "package": "pytest", "devices": 2, "steps": 3, "sequence_length": 64, "global_batch": 8,
        "flops_per_token": 1e6, "parameters": 10, "active_parameters": 9, "precision": "bf16", "checkpoint_folder": "", "keep": 2,
        "resume": "auto", "start_from": "", "print_every_steps": 1, "prometheus_file": "", "settings": {"train.steps": 3},
    }  # fmt: skip
    return RunFacts(**{**values, **changed})  # type: ignore[arg-type]


def device(_precision: str = "") -> Device:
    """Return a device without a peak."""
    return Device("CPU", None, lambda: 0.5)


def test_a_line_of_megatron_becomes_a_step() -> None:
    """Other lines, and a step without a loss, do not."""
    expected = Step(6, 5.382158, 0.3018, grad_norm=0.842, learning_rate=1.65e-3, balance_loss=1.002)

    assert log_lines.read_step(LINE) == expected
    assert log_lines.read_step(LINE.replace(" lm loss: 5.382158E+00 |", "")) is None
    assert log_lines.read_step("validation loss at iteration 6 | lm loss value: 5.3") is None
    assert log_lines.read_step(LINE.replace("5.382158E+00", "nan")) != expected
    assert log_lines.read_checkpoint(SAVED) == (10, "iter_0000010")
    assert log_lines.read_checkpoint(LINE) is None


def test_steps_are_written_as_by_the_native_trainer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """steps.jsonl, metrics.prom, a printed line, and the result."""
    writer = StepWriter(tmp_path, facts(), device)
    writer.write(Step(1, 5.0, 0.5, grad_norm=1.0, learning_rate=1e-3))
    writer.write(Step(2, 4.0, 0.25))
    running = (tmp_path / "metrics.prom").read_text()
    writer.close("done")
    first, second = (json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines())
    result = json.loads((tmp_path / "results.jsonl").read_text())

    assert (first["step"], first["loss"], first["tokens"], first["step_time_s"], first["tokens_per_s"]) == (1, 5.0, 512, 0.5, 1024.0)
    assert first["tokens_per_s_per_device"] == 512.0
    assert (second["step"], second["step_time_s"], second["mfu"], second["memory_peak_gib"]) == (2, 0.25, None, 0.5)
    assert "primus_train_step{" in running
    assert "primus_train_running" in (tmp_path / "metrics.prom").read_text()
    assert "step 1  loss 5.0000" in capsys.readouterr().out
    assert (result["backend"], result["outcome"], result["step"], result["settings"]) == ("megatron", "done", 2, {"train.steps": 3})


def test_a_failed_run_has_no_result(tmp_path: Path) -> None:
    """Its metrics show the end."""
    writer = StepWriter(tmp_path, facts(), device)
    writer.write(Step(1, 5.0, 0.5))
    writer.close("")

    assert not (tmp_path / "results.jsonl").exists()
    assert "primus_train_running" in (tmp_path / "metrics.prom").read_text()


def test_marks_show_the_newest_complete_checkpoint_and_old_ones_are_removed(tmp_path: Path) -> None:
    """The watcher's rule finds it. The native trainer refuses its format."""
    for step in (5, 10, 15):
        (tmp_path / f"iter_{step:07d}").mkdir()
        mark(tmp_path, step, backend="megatron", content=f"iter_{step:07d}", keep=2)

    assert newest_complete(tmp_path) == "step-00000015"
    assert newest_step(tmp_path, str(tmp_path)) == 15
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000010", "iter_0000015"]
    assert json.loads((tmp_path / "step-00000015" / "manifest.json").read_text())["format"] == "megatron"


def test_a_mark_never_removes_anything_outside_of_its_folder(tmp_path: Path) -> None:
    """A damaged manifest may name any path."""
    outside = tmp_path / "other"
    outside.mkdir()
    folder = tmp_path / "checkpoints"
    for step, content in ((5, "../other"), (10, "iter_0000010")):
        mark(folder, step, backend="megatron", content=content, keep=1)

    assert outside.is_dir()
    assert newest_complete(folder) == "step-00000010"


def test_megatron_resumes_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """A named checkpoint is used only if the run has none of its own."""
    other = tmp_path / "other"
    (other / "iter_0000020").mkdir(parents=True)
    own = tmp_path / "own"
    named = ("--load", str(other), "--ckpt-step", "20")

    assert resume.load_arguments(own, "auto", "") == ()
    assert resume.load_arguments(own, str(other / "step-00000020"), "") == named
    assert resume.load_arguments(own, "auto", str(other / "iter_0000020")) == (*named, "--finetune")
    with pytest.raises(StorageError, match="no checkpoint of Megatron-LM"):
        resume.load_arguments(own, str(other / "iter_0000030"), "")
    own.mkdir()
    (own / "latest_checkpointed_iteration.txt").write_text("40")
    assert resume.load_arguments(own, str(other / "iter_0000020"), "") == ("--load", str(own))
    assert resume.load_arguments(own, "never", "") == ()


def test_printed_lines_are_read_once_and_still_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """What the reader prints itself is not read."""
    seen: list[str] = []

    def read(line: str) -> None:
        seen.append(line)
        print("answer")

    with read_lines(read):
        print("one")
        sys.stderr.write("tw")
        sys.stderr.write("o\nthree")

    assert seen == ["one", "two"]
    assert capsys.readouterr().out == "one\nanswer\nanswer\n"


def test_the_program_trains_writes_steps_and_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An early stop ends with 75; another version of the package ends with 2."""
    monkeypatch.delenv("RUN_DIR", raising=False)
    file = tmp_path / "backend.json"
    early = {"now": False}

    def train(_facts: RunFacts, checkpoints: Path, arguments: list[str]) -> bool:
        (checkpoints / "iter_0000010").mkdir(parents=True, exist_ok=True)
        print(LINE, arguments)
        print(SAVED)
        return early["now"]

    training = program.Training(train, log_lines.read_step, log_lines.read_checkpoint, device)
    words = ["--run", str(file), "--", "--num-layers", "2"]
    file.write_text(json.dumps(asdict(facts(version=pytest.__version__))))
    assert program.main("pretrain", training, words) == 0
    early["now"] = True
    assert program.main("pretrain", training, words) == 75
    assert [json.loads(line)["step"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()] == [6, 6]
    assert newest_complete(tmp_path / "checkpoints") == "step-00000010"

    file.write_text(json.dumps(asdict(facts(version="0.0"))))
    assert program.main("pretrain", training, words) == 2
    assert "primus-cli backend install megatron" in capsys.readouterr().err


def test_the_file_of_another_release_is_an_error(tmp_path: Path) -> None:
    """The launcher and the program must be of one release."""
    file = tmp_path / "backend.json"
    for text in ("{}", "[", "[]"):
        file.write_text(text)
        with pytest.raises(SettingsError, match="not the file of a run"):
            read_run_facts(file)


def test_the_shim_needs_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is used by tests only."""
    monkeypatch.delenv(cpu_shim.VARIABLE, raising=False)
    assert not cpu_shim.wanted()
    assert "--sequence-parallel" not in cpu_shim.arguments(["--sequence-parallel", "--bf16"])
