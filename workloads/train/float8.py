"""Matrix products in 8-bit floating point, with torchao. Weights, optimizer and attention keep their precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from workloads.train.settings import Settings

# The hardware's products take matrices whose sizes are multiples of this: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_mm.html
_MULTIPLE = 16
# Compute capability of NVIDIA's first GPUs with such products (Ada), and AMD's architectures with them (MI300, MI350):
# https://rocm.docs.amd.com/en/latest/reference/precision-support.html
_NVIDIA = (8, 9)
_AMD = ("gfx942", "gfx950")


def require_float8(settings: Settings, device: torch.device) -> None:
    """Check that this device and its packages can compute with 8 bits.

    Raises:
        SettingsError: They cannot.
    """
    if settings.compute.precision != "fp8":
        return
    _torchao()
    problem = "" if settings.compute.fp8_recipe == "emulated" else _lacks(device)
    if problem:
        raise SettingsError(f"compute.precision=fp8 does not work: {problem}", fix="set compute.precision=bf16")


def _lacks(device: torch.device) -> str:
    if device.type != "cuda":
        return f"{device.type} has no 8-bit matrix products"
    name = torch.cuda.get_device_name(device)
    if torch.version.hip:
        architecture = torch.cuda.get_device_properties(device).gcnArchName.partition(":")[0]
        return "" if architecture in _AMD else f"{name} ({architecture}) has no 8-bit matrix products, only {' and '.join(_AMD)} do"
    capability = torch.cuda.get_device_capability(device)
    return (
        "" if capability >= _NVIDIA else f"{name} has no 8-bit matrix products; they need compute capability 8.9, this GPU has {capability}"
    )


def convert_to_float8(blocks: nn.Module, recipe: str) -> None:
    """Replace the matrices of the blocks, in place; routers and matrices of other sizes than the products take stay as they are."""
    torchao = _torchao()
    config = torchao.Float8LinearConfig(emulate=True) if recipe == "emulated" else torchao.Float8LinearConfig.from_recipe_name(recipe)
    torchao.convert_to_float8_training(blocks, config=config, module_filter_fn=takes_float8)


def takes_float8(module: nn.Module, name: str) -> bool:
    """Return whether a module is replaced. Routing is sensitive to rounding, and routers are small."""
    return (
        isinstance(module, nn.Linear)
        and not name.endswith("router")
        and module.in_features % _MULTIPLE == 0
        and module.out_features % _MULTIPLE == 0
    )


def _torchao() -> Any:
    try:
        import torchao.float8  # noqa: PLC0415 - only runs with this setting need the package
    except ImportError as error:
        raise SettingsError(f"compute.precision=fp8 needs the package torchao: {error}", fix="pip install torchao") from error
    return torchao.float8
