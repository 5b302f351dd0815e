"""For tests on CPUs only: let accelerate shard a model with FSDP2 over CPU ranks. Without it, accelerate copies the model to every rank.

It is used only with PRIMUS_TEST_CPU_SHIM=1, and says so.
"""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "PRIMUS_TEST_CPU_SHIM"
_WARNING = f"{VARIABLE}: THE CPU SHIM FOR TESTS IS ON: FSDP runs on CPUs, slowly. Never use it for training."


def wanted() -> bool:
    """Return whether the shim is switched on."""
    return os.environ.get(VARIABLE) == "1"


def install() -> None:
    """Make FSDP the way in which accelerate distributes a model over CPU ranks, if the settings have FSDP."""
    from accelerate.state import AcceleratorState  # noqa: PLC0415 - only the interpreter of the backend has it
    from accelerate.utils import DistributedType  # noqa: PLC0415 - the same

    print(_WARNING, flush=True)
    original = AcceleratorState.__init__

    def initialize(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin

    AcceleratorState.__init__ = initialize
