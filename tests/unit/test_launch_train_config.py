"""primus_bootstrap.launch.training: the files and settings of a training run are checked before the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.programs import train_settings
from primus_bootstrap.launch.tasks import Request
from primus_bootstrap.launch.training import training_task as training

ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "workloads"


def request(cwd: Path, *arguments: str, workloads: Path = WORKLOADS, prepared: bool = False) -> Request:
    """Return a request with these arguments."""
    return Request(arguments, "python3", lambda: workloads, cwd=cwd, prepared=prepared)


def refused(cwd: Path, *arguments: str) -> UsageError:
    """Return the error of these arguments."""
    with pytest.raises(UsageError) as raised:
        training.check(request(cwd, *arguments))
    return raised.value


@pytest.mark.parametrize(
    "arguments", [("--config", "debug-dens"), ("--config=debug-dens",), ("--config", "debug-moe", "--config", "debug-dens")]
)
def test_an_unknown_preset_is_an_error_with_the_nearest_name(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Every --config is checked, in both forms."""
    error = refused(tmp_path, *arguments)

    assert (error.what, error.fix) == ("--config debug-dens: no such file or preset", "did you mean debug-dense?")


def test_presets_and_files_are_accepted(tmp_path: Path) -> None:
    """A path is relative to the working folder."""
    (tmp_path / "mine.yaml").write_text("# nothing\n")
    (tmp_path / "mine.json").write_text('{"train": {"steps": 4}}')
    for arguments in (("--config", "llama-3.1-8b"), ("--config=mine.yaml",), ("--config", str(tmp_path / "mine.json")), ()):
        assert training.check(request(tmp_path, *arguments)) == ()


def test_a_missing_file_is_accepted_if_a_hook_may_write_it(tmp_path: Path) -> None:
    """A misspelt preset is not."""
    assert training.check(request(tmp_path, "--config", "mine.yaml", prepared=True)) == ()
    for name, prepared in (("mine.yaml", False), ("debug-dens", True)):
        with pytest.raises(UsageError, match="no such file or preset"):
            training.check(request(tmp_path, "--config", name, prepared=prepared))


def test_nothing_is_checked_without_readable_programs(tmp_path: Path) -> None:
    """The workloads may be elsewhere, for example in a container."""
    assert training.check(request(tmp_path, "--config", "theirs", "train.stepz=3", workloads=tmp_path / "none")) == ()


def test_a_value_outside_its_limits_is_reported_with_its_line(tmp_path: Path) -> None:
    """The trainer would stop at its start, after the job has waited in the queue."""
    (tmp_path / "x.yaml").write_text("train:\n  steps: -3\n  micro_batch: '0'\nmodel: {dropout: 1}\n")
    error = refused(tmp_path, "--config", "x.yaml", "optimizer.eps=0", "optimizer.min_lr_ratio=2", "train.steps=1", "model.dropout=0.5")

    assert str(error).splitlines() == [
        "x.yaml:2: train.steps: found -3",
        "  fix: give 1 or more",
        "x.yaml:3: train.micro_batch: found '0'",
        "  fix: give 1 or more",
        "x.yaml:4: model.dropout: found 1",
        "  fix: give 0 or more and less than 1",
        "argument optimizer.eps=0: optimizer.eps: found '0'",
        "  fix: give more than 0",
        "argument optimizer.min_lr_ratio=2: optimizer.min_lr_ratio: found '2'",
        "  fix: give 0 or more and at most 1",
    ]


def test_a_misspelt_setting_is_reported_with_its_line(tmp_path: Path) -> None:
    """All mistakes at once: those of the file and those of the arguments."""
    (tmp_path / "x.yaml").write_text("train:\n  steps: 4\n  stepz: 3\noptimzer: {lr: 1}\nmodel: {layers: many}\n")
    error = refused(tmp_path, "--config", "x.yaml", "train.stps=3", "optimizer.lr=fast", "compute.precision=fp61", "model=3")

    assert str(error).splitlines() == [
        "x.yaml:3: train.stepz: no such setting",
        "  fix: did you mean train.steps?",
        "x.yaml:4: optimzer.lr: no such setting",
        "  fix: did you mean optimizer.lr?",
        "x.yaml:5: model.layers: found 'many'",
        "  fix: give a whole number",
        "argument train.stps=3: train.stps: no such setting",
        "  fix: did you mean train.steps?",
        "argument optimizer.lr=fast: optimizer.lr: found 'fast'",
        "  fix: give a number",
        "argument compute.precision=fp61: compute.precision: found 'fp61'",
        "  fix: choose from: fp32, bf16, fp8",
        "argument model=3: model: a section, not a setting",
        f"  fix: set one of: {', '.join(name for name in train_settings.known_settings(WORKLOADS) if name.startswith('model.'))}",
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("train: [4]\ntrain: 5\n", "x.yaml:2: train is set twice"),
        ("- train\n", "x.yaml:1: the file is not a mapping"),
        ("train: {steps\n", "x.yaml: cannot be read as YAML: "),
        ("work_group: amd\nmodules:\n  pre_trainer: {framework: megatron}\n", "x.yaml: this is an experiment file of AMD Primus"),
        ("modules: {post_trainer: {}}\n", "x.yaml: this is an experiment file of AMD Primus"),
    ],
)
def test_a_file_in_another_form_is_an_error(text: str, what: str, tmp_path: Path) -> None:
    """The fix for an experiment file of AMD Primus converts it."""
    (tmp_path / "x.yaml").write_text(text)
    error = refused(tmp_path, "--config", "x.yaml")

    assert error.what.startswith(what)
    assert (error.fix == "primus-cli config convert x.yaml") == ("modules" in text)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--config",), "train pretrain: --config: expected one argument"),
        (("--confg", "x"), "train pretrain: --confg: unknown option"),
        (("debug-dense",), "debug-dense: neither an option nor key=value"),
    ],
)
def test_a_wrong_option_is_an_error(arguments: tuple[str, ...], what: str, tmp_path: Path) -> None:
    """The trainer has the same options."""
    assert refused(tmp_path, *arguments).what == what


def test_a_file_that_only_the_image_may_have_is_not_checked(tmp_path: Path) -> None:
    """The plan says so."""
    remarks = training.check(Request(("--config", "/data/x.yaml"), "", lambda: WORKLOADS, cwd=tmp_path, find=lambda _: None))

    assert remarks == ("--config /data/x.yaml is in no mounted folder of this machine, so it is not checked before the start",)


def test_the_help_lists_every_setting(tmp_path: Path) -> None:
    """With type, default and meaning, without torch."""
    text = training.help_text("train posttrain", request(tmp_path))

    assert text.startswith("usage: primus-cli direct -- train posttrain ")
    assert "  compute.precision  (fp32 | bf16 | fp8, default 'bf16')\n      precision of the arithmetic" in text
    assert all(f"\n  {name}  (" in text for name in train_settings.known_settings(WORKLOADS))
