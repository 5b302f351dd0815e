"""Causal attention with a selectable backend. Shapes: see model.py."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, cast

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

    from workloads.train.settings import Settings

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def attend(q_BHLC: Tensor, k_BKLC: Tensor, v_BKLC: Tensor, backend: str) -> Tensor:
    """Return the attention of each query to the keys before it; a key head serves H / K query heads."""
    grouped = q_BHLC.shape[1] != k_BKLC.shape[1]
    with kernels(backend):
        return functional.scaled_dot_product_attention(q_BHLC, k_BKLC, v_BKLC, is_causal=True, enable_gqa=grouped)


def kernels(backend: str) -> AbstractContextManager[object]:
    """Return the context in which scaled_dot_product_attention uses a backend."""
    return nullcontext() if backend == "auto" else cast("AbstractContextManager[object]", sdpa_kernel(BACKENDS[backend]))


def require_backend(settings: Settings, device: torch.device) -> None:
    """Run the selected backend once with the shape of the model's heads.

    Raises:
        SettingsError: The backend does not support this device or shape; the message contains torch's reasons.
    """
    model, compute = settings.model, settings.compute
    dtype = torch.bfloat16 if compute.precision != "fp32" else torch.float32
    q_BHLC, k_BKLC = (
        torch.zeros(1, heads, 8, model.width // model.heads, device=device, dtype=dtype) for heads in (model.heads, model.kv_heads)
    )
    with warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            attend(q_BHLC, k_BKLC, k_BKLC, compute.attention)
        except RuntimeError as error:
            why = "; ".join(str(reason.message).split(" (Triggered")[0].strip() for reason in reasons) or str(error)
            raise SettingsError(
                f"compute.attention={compute.attention} does not work on {device}: {why}", fix="set compute.attention=auto"
            ) from error
