"""The options and settings that primus-cli reads from the source are those that the programs have."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Any

import pytest

from primus_bootstrap.launch.programs import benchmarks, train_settings
from primus_bootstrap.launch.self_exec import programs_in
from primus_bootstrap.launch.training import native_training
from tests.workloads.ranks import ROOT
from workloads.common.errors import SettingsError
from workloads.train.combinations import COMBINATIONS, meets
from workloads.train.load_settings import Given, _convert, known_settings

WORKLOADS = ROOT / "workloads"
KNOWN = train_settings.known_settings(WORKLOADS)
# One setting of each type, then of each kind of limits.
TYPES = ("train.steps", "optimizer.lr", "compute.compile", "checkpoint.folder", "data.files", "compute.precision")
LIMITED = ("model.norm_eps", "model.dropout", "optimizer.min_lr_ratio")
NUMBERS: tuple[Any, ...] = (3, "3", 3.5, "3.5", "3e-4", "inf", -1, "-1", 0, 1, 1.0)
VALUES: tuple[Any, ...] = (*NUMBERS, "x", "", True, "true", "False", None, [], ["a"], [1], "a,b", "bf16")


@pytest.mark.parametrize("name", programs_in(WORKLOADS, "bench"))
def test_every_option_of_a_benchmark_is_read(name: str) -> None:
    """With its default and its help."""
    declared = fields(importlib.import_module(f"workloads.bench.{name}").BENCHMARK.options)
    text = " ".join(benchmarks.help_text(WORKLOADS, [name]).split())

    for option in declared:
        assert f"--{option.name.replace('_', '-')} " in text
        assert " ".join(option.metadata["help"].replace("%%", "%").split()) in text


def test_every_setting_of_the_trainer_is_read() -> None:
    """In the same order, with the same default, meaning and limits."""
    assert [(name, item.default, item.meaning, item.limits) for name, item in KNOWN.items()] == [
        (item.key, item.default, item.meaning, item.limits) for item in known_settings()
    ]


def test_the_combinations_that_the_trainer_rejects_are_read() -> None:
    """With the same fixes; each names existing settings, and their defaults are accepted."""
    assert native_training.combinations(WORKLOADS) == COMBINATIONS
    assert {name for conditions, _ in COMBINATIONS for name in conditions} <= set(KNOWN)
    assert not list(native_training._problems(WORKLOADS, {name: item.default for name, item in KNOWN.items()}))


@pytest.mark.parametrize("condition", ["set", "above 1", "above 0", "ddp", 1, 0, True, False])
@pytest.mark.parametrize("value", [0, 1, 2, 0.1])
def test_both_judge_a_condition_alike(value: Any, condition: Any) -> None:
    """Of numbers; the values of a run have the types of the settings."""
    assert native_training.meets(value, condition) == meets(value, condition)


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", [*TYPES, *LIMITED])
def test_both_accept_the_same_values(name: str, value: Any) -> None:
    """A value that primus-cli accepts does not end the run at its start, and none that the trainer takes is refused."""
    try:
        _convert(Given(name, value, "x.yaml:1"), {item.key: item for item in known_settings()})
        fix = ""
    except SettingsError as error:
        fix = error.fix
    what, own_fix = train_settings.problem(KNOWN, name, value)

    assert bool(what) == bool(fix)
    assert own_fix == fix or "text" in own_fix
