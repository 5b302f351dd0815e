"""workloads.train.float8: which matrices are converted, and where the device or the package is missing."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

from workloads.common.errors import SettingsError
from workloads.train.float8 import convert_to_float8, require_float8, takes_float8
from workloads.train.load_settings import load_settings
from workloads.train.model import Transformer, materialise

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")
FP8 = "compute.precision=fp8"


@dataclass
class Config:
    """The configuration of the package."""

    emulate: bool = False
    recipe: str = ""

    @classmethod
    def from_recipe_name(cls, name: str) -> Config:
        """Return the configuration of a recipe."""
        return cls(recipe=name)


class Package(ModuleType):
    """A package with the functions that the trainer calls; it records them."""

    Float8LinearConfig = Config

    def __init__(self) -> None:
        """Start without calls."""
        super().__init__("torchao.float8")
        self.converted: list[str] = []
        self.config = Config()

    def convert_to_float8_training(self, module: torch.nn.Module, *, config: Config, module_filter_fn: Callable[[Any, str], bool]) -> None:
        """Record the names that would be converted."""
        self.config = config
        self.converted = [name for name, part in module.named_modules() if module_filter_fn(part, name)]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    """Install the package for a test."""
    parent, found = ModuleType("torchao"), Package()
    parent.float8 = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchao", parent)
    monkeypatch.setitem(sys.modules, "torchao.float8", found)
    return found


def test_the_matrices_of_blocks_are_converted_and_routers_are_not(package: Package) -> None:
    """With the recipe of the settings."""
    settings = load_settings(["debug-moe"], [FP8, "compute.fp8_recipe=rowwise"])
    with torch.device("meta"):
        model = Transformer(settings.model, settings.compute)
    convert_to_float8(model.blocks, "rowwise")

    assert package.config == Config(recipe="rowwise")
    assert package.converted == [f"{block}.attention.{name}" for block in (0, 1) for name in ("query", "key", "value", "output")]


def test_the_emulation_has_no_recipe(package: Package) -> None:
    """It is an option of the package."""
    convert_to_float8(torch.nn.Sequential(torch.nn.Linear(16, 16)), "emulated")

    assert package.config == Config(emulate=True)
    assert package.converted == ["0"]


def test_matrices_of_other_sizes_stay_as_they_are() -> None:
    """The products take multiples of 16."""
    assert takes_float8(torch.nn.Linear(32, 48), "query")
    assert not takes_float8(torch.nn.Linear(32, 40), "query")
    assert not takes_float8(torch.nn.Linear(24, 48), "query")


@pytest.mark.usefixtures("package")
def test_a_device_without_such_products_is_rejected() -> None:
    """Before the model is built; the emulation runs anywhere."""
    with pytest.raises(SettingsError, match="cpu has no 8-bit matrix products"):
        require_float8(load_settings([], [FP8]), CPU)

    require_float8(load_settings([], [FP8, "compute.fp8_recipe=emulated"]), CPU)
    require_float8(load_settings([], []), CPU)


def test_a_missing_package_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only runs with fp8 need it."""
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(SettingsError) as raised:
        require_float8(load_settings([], [FP8]), CPU)

    assert raised.value.fix == "pip install torchao"


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of the package
def test_the_emulation_is_near_bf16_and_not_equal() -> None:
    """With the real package: its conversion, forward and backward pass."""
    logits: list[torch.Tensor] = []
    gradients: list[torch.Tensor] = []
    for precision in ("bf16", "fp8"):
        settings = load_settings(["debug-dense"], [f"compute.precision={precision}", "compute.fp8_recipe=emulated"])
        with torch.device("meta"):
            model = Transformer(settings.model, settings.compute)
        if precision == "fp8":
            convert_to_float8(model.blocks, "emulated")
        materialise(model, CPU, seed=1, name="", layers=2)
        with torch.autocast("cpu", torch.bfloat16):
            found = model(torch.randint(512, (2, 32), generator=torch.Generator().manual_seed(1)))[0].float()
        torch.autograd.backward(found.square().sum())
        logits.append(found)
        gradient = model.get_parameter("blocks.0.attention.query.weight").grad
        assert gradient is not None
        gradients.append(gradient)
    differences = [float((found - exact).norm() / exact.norm()) for exact, found in (logits, gradients)]

    assert all(0 < difference < 0.2 for difference in differences)
