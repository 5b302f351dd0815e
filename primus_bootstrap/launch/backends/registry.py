"""The backends by name. `native` is the trainer in workloads/train, which needs no adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.backends.maxtext.adapter import MaxText
from primus_bootstrap.launch.backends.megatron.adapter import Megatron
from primus_bootstrap.launch.backends.torchtitan.adapter import TorchTitan
from primus_bootstrap.launch.backends.trl.adapter import Trl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.backends.contract import Backend

NATIVE = "native"
_BACKENDS: tuple[Backend, ...] = (Megatron(), TorchTitan(), MaxText(), Trl())
POSTTRAINING = ("trl",)  # the backends of train posttrain; the others are those of train pretrain


def backends() -> Mapping[str, Backend]:
    """Return every adapter by its name."""
    return {item.name: item for item in _BACKENDS}


def backend(name: str) -> Backend:
    """Return an adapter.

    Raises:
        UsageError: There is none of this name.
    """
    found = backends()
    if name not in found:
        raise UsageError(f"no such backend: {name}", fix=did_you_mean(name, [*found, NATIVE]))
    return found[name]
