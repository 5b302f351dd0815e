"""The options and settings that primus-cli reads from the source are those that the programs have."""

from __future__ import annotations

import importlib
from dataclasses import fields
from typing import Any

import pytest

from primus_bootstrap.launch.programs import benchmarks, train_settings
from primus_bootstrap.launch.self_exec import programs_in
from tests.workloads.ranks import ROOT
from workloads.common.errors import SettingsError
from workloads.train.load_settings import Given, _convert, known_settings

WORKLOADS = ROOT / "workloads"
KNOWN = train_settings.known_settings(WORKLOADS)
# One setting of each type.
TYPES = ("train.steps", "optimizer.lr", "compute.compile", "checkpoint.folder", "data.files", "compute.precision")
VALUES: tuple[Any, ...] = (3, "3", "x", "", 3.5, "3.5", "3e-4", True, "true", "False", None, [], ["a"], [1], "a,b", "bf16", "inf", -1)


@pytest.mark.parametrize("name", programs_in(WORKLOADS, "bench"))
def test_every_option_of_a_benchmark_is_read(name: str) -> None:
    """With its default and its help."""
    declared = fields(importlib.import_module(f"workloads.bench.{name}").BENCHMARK.options)
    text = " ".join(benchmarks.help_text(WORKLOADS, [name]).split())

    for option in declared:
        assert f"--{option.name.replace('_', '-')} " in text
        assert " ".join(option.metadata["help"].replace("%%", "%").split()) in text


def test_every_setting_of_the_trainer_is_read() -> None:
    """In the same order, with the same default and meaning."""
    assert [(name, item.default, item.meaning) for name, item in KNOWN.items()] == [
        (item.key, item.default, item.meaning) for item in known_settings()
    ]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("name", TYPES)
def test_both_accept_the_same_values(name: str, value: Any) -> None:
    """A value that primus-cli accepts does not end the run at its start, and none that the trainer takes is refused."""
    try:
        _convert(Given(name, value, "x.yaml:1"), {item.key: item for item in known_settings()})
        accepted = True
    except SettingsError:
        accepted = False

    assert (train_settings.problem(KNOWN, name, value) == ("", "")) == accepted
