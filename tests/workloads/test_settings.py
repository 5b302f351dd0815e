"""workloads.train.load_settings and check_settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from tests.waiting import LIMIT_S
from workloads.common.errors import SettingsError
from workloads.train.check_settings import check_settings
from workloads.train.load_settings import PRESETS, known_settings, load_settings, value_of
from workloads.train.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def test_arguments_override_later_files_which_override_earlier_files(tmp_path: Path) -> None:
    """Values are merged by key."""
    (tmp_path / "a.yaml").write_text("model: {layers: 3, width: 128}\ntrain: {steps: 7}\n")
    (tmp_path / "b.json").write_text('{"model": {"layers": 4}, "data": {"files": ["x.json"], "source": "files"}}')
    settings = load_settings(
        [str(tmp_path / "a.yaml"), str(tmp_path / "b.json")], ["train.steps=9", "optimizer.lr=1e-3", "compute.compile=true"]
    )

    assert (settings.model.layers, settings.model.width, settings.train.steps) == (4, 128, 9)
    assert (settings.optimizer.lr, settings.compute.compile, settings.data.files) == (1e-3, True, ("x.json",))


def test_a_number_in_scientific_notation_is_accepted(tmp_path: Path) -> None:
    """YAML 1.1 reads 3e-4 as a string."""
    (tmp_path / "a.yaml").write_text("optimizer: {lr: 3e-4}\n")

    assert load_settings([str(tmp_path / "a.yaml")], []).optimizer.lr == pytest.approx(3e-4)


def test_all_problems_are_reported_with_location_and_fix(tmp_path: Path) -> None:
    """A misspelt key, a wrong type, a wrong choice, and a section used as a setting."""
    path = tmp_path / "a.yaml"
    path.write_text("model:\n  layer: 4\n  width: wide\ncompute:\n  precision: fp4\nsteps: 5\n")
    with pytest.raises(SettingsError) as caught:
        load_settings([str(path)], ["train=3", "compute.compile=maybe", "train.steps=1.5"])

    assert caught.value.what.splitlines() == [
        f"{path}:2: model.layer: no such setting",
        "  fix: did you mean model.layers?",
        f"{path}:3: model.width is 'wide'",
        "  fix: give a whole number",
        f"{path}:5: compute.precision is 'fp4'",
        "  fix: choose from: fp32, bf16, fp8",
        f"{path}:6: steps: no such setting",
        "  fix: did you mean train.steps?",
        "argument 'train=3': train is a section, not a setting",
        "  fix: set one of: train.steps, train.sequence_length, train.global_batch, train.micro_batch, train.clip_norm, train.seed",
        "argument 'compute.compile=maybe': compute.compile is 'maybe'",
        "  fix: give true or false",
        "argument 'train.steps=1.5': train.steps is '1.5'",
        "  fix: give a whole number",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: [1]\nmodel: {}\n", "model is set twice"),
        ("- 1\n", "is not a mapping"),
        ("a: {b\n", "not YAML"),
        ("train: {steps: true}\n", "train.steps is True"),
        ("train: {steps: 2.0}\n", "train.steps is 2.0"),
        ("data: {files: 3}\n", "data.files is 3"),
        ("checkpoint:\n  folder:\n", "checkpoint.folder is None"),
        ("optimizer: {lr: .nan}\n", "optimizer.lr is nan"),
        ("[3]\n", "is not a mapping"),
    ],
)
def test_a_wrong_file_is_an_error(tmp_path: Path, text: str, expected: str) -> None:
    """Duplicate keys, wrong structure, and wrong types."""
    for name in ("a.yaml", "a.json") if text.startswith("[") else ("a.yaml",):
        (tmp_path / name).write_text(text)

        with pytest.raises(SettingsError, match=expected):
            load_settings([str(tmp_path / name)], [])


@pytest.mark.parametrize(("name", "fix"), [("debug-dens", "did you mean debug-dense?"), ("x", "one of the presets: debug-dense, ")])
def test_an_unknown_file_suggests_a_preset(name: str, fix: str) -> None:
    """The fix has the nearest preset, or all of them."""
    with pytest.raises(SettingsError) as caught:
        load_settings([name], [])

    assert fix in caught.value.fix


def test_print_settings_ends_quietly_if_its_reader_ends() -> None:
    """As in `--print-settings | head`."""
    command = [sys.executable, str(PRESETS.parent / "train" / "pretrain.py"), "--config", "debug-dense", "--print-settings"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.close()
        _, errors = process.communicate(timeout=LIMIT_S)

    assert (process.returncode, errors) == (0, "")


def test_the_manual_lists_every_preset() -> None:
    """docs/training.md has a row for each, so that a reader can choose one, and for no other."""
    manual = PRESETS.parents[1] / "docs" / "training.md"
    rows = manual.read_text().partition("| preset | for |\n")[2].partition("\n\n")[0].splitlines()[1:]
    listed = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]

    assert sorted(listed) == sorted(path.stem for path in PRESETS.glob("*.yaml")), f"correct the table of presets in {manual}"


@pytest.mark.parametrize("preset", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_every_preset_is_valid_and_has_a_description(preset: str) -> None:
    """On one and on eight ranks."""
    settings = load_settings([preset], ["train.global_batch=64"])
    check_settings(settings, 1)
    check_settings(settings, 8 if settings.train.micro_batch <= 8 else 1)

    assert settings.about, f"write into `about` of {preset}.yaml: the source of the model's shape, and the hardware that the batch is for"


def test_settings_json_of_a_run_is_a_configuration(tmp_path: Path) -> None:
    """Loading it gives the same settings."""
    settings = load_settings(["debug-moe"], ["data.source=files", "data.files=a.json,b.json", "compute.deterministic=true"])
    (tmp_path / "settings.json").write_text(json.dumps(asdict(settings)))

    assert load_settings([str(tmp_path / "settings.json")], []) == settings


def test_every_setting_has_a_meaning_and_a_default_of_its_type() -> None:
    """The defaults are valid settings."""
    check_settings(Settings(), 1)

    assert all(known.meaning and value_of(asdict(Settings()), known.key) == known.default for known in known_settings())


@pytest.mark.parametrize(
    ("arguments", "ranks", "expected"),
    [
        (["model.layers=0"], 1, "model.layers is 0"),
        (["model.heads=3"], 1, "is not an even number"),
        (["model.kv_heads=3"], 1, "is not a multiple of model.kv_heads"),
        (["model.dropout=1"], 1, "model.dropout is 1"),
        (["model.experts=4", "model.experts_per_token=5"], 1, "experts_per_token is 5"),
        (["train.global_batch=6"], 2, "not a multiple of 4 = train.micro_batch"),
        (["parallel.tensor=2"], 2, "parallel.tensor=2 and parallel.strategy=ddp do not"),
        (["parallel.tensor=2", "parallel.strategy=fsdp"], 3, "3 ranks are not a multiple"),
        (["parallel.tensor=4", "parallel.strategy=fsdp"], 4, r"model.kv_heads \(2\)"),
        (["parallel.tensor=2", "parallel.strategy=fsdp", "model.experts=4"], 2, "parallel.tensor=2 and model.experts=4 do not"),
        (["parallel.tensor=2", "parallel.strategy=fsdp", "model.dropout=0.1"], 2, "parallel.tensor=2 and model.dropout=0.1 do not"),
        (["parallel.context=2"], 3, "3 ranks are not a multiple of parallel.context"),
        (["parallel.context=2", "train.sequence_length=62"], 2, r"sequence_length \(62\) is not a multiple of 4 = 2 x"),
        (
            ["parallel.context=2", "parallel.tensor=2", "parallel.strategy=fsdp", "train.sequence_length=66"],
            4,
            "66.* is not a multiple of 4 = p",
        ),
        (["parallel.pipeline=4", "parallel.strategy=fsdp"], 4, r"model.layers \(2\) is less than the 4 stages"),
        (["parallel.pipeline=2", "parallel.strategy=fsdp", "train.micro_batch=8"], 2, "1 micro-batches per rank and step do not fill 2"),
        (
            ["parallel.pipeline=2", "parallel.virtual_pipeline=2", "parallel.strategy=fsdp", "model.layers=4", "train.global_batch=10"],
            2,
            "5 micro",
        ),
        (
            ["parallel.expert=3", "model.experts=4", "parallel.strategy=fsdp", "train.global_batch=12"],
            3,
            r"model.experts \(4\) is not a mult",
        ),
        (["parallel.expert=2", "model.experts=4", "parallel.strategy=fsdp", "train.global_batch=6"], 3, "3 ranks with different tokens"),
        (["data.source=files"], 1, "data.files is empty"),
        (["data.files=x.json"], 1, "data.source is synthetic"),
        (["parallel.timeout_s=60"], 1, "not above the watchdog"),
        (["parallel.tensor=0"], 1, "parallel.tensor is 0"),
        (["data.prefetch_steps=-1"], 1, "data.prefetch_steps is -1"),
        (["checkpoint.every_steps=-1"], 1, "checkpoint.every_steps is -1"),
        (["optimizer.lr=-1"], 1, "optimizer.lr is -1"),
        (["optimizer.beta2=1"], 1, "optimizer.beta2 is 1"),
        (["optimizer.min_lr_ratio=2"], 1, "optimizer.min_lr_ratio is 2"),
        (["optimizer.decay_steps=2"], 1, r"optimizer.decay_steps \(2\) is not above"),
    ],
)
def test_inconsistent_settings_are_an_error(arguments: list[str], ranks: int, expected: str) -> None:
    """One case per rule."""
    with pytest.raises(SettingsError, match=expected):
        check_settings(load_settings([], arguments), ranks)
