"""FOR TESTS ONLY: run TorchTitan, which requires a GPU, on a CPU with gloo.

The device is the CPU, and the functions of a GPU's memory return nothing. The speed and the memory of such a run mean nothing. Tests switch
it on with PRIMUS_TEST_CPU_SHIM=1; every start prints a warning.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

VARIABLE = "PRIMUS_TEST_CPU_SHIM"
_WARNING = (
    "WARNING: THE CPU SHIM FOR TESTS IS ON (PRIMUS_TEST_CPU_SHIM): TorchTitan runs on the CPU. The speed and the memory of this run mean"
    " nothing. Unset the variable for a real run."
)


def wanted() -> bool:
    """Return whether the tests ask for the shim."""
    return os.environ.get(VARIABLE, "") == "1"


def install() -> None:
    """Make the CPU the device of this process. Call it before torchtitan is imported, which asks for the device then."""
    print(_WARNING, file=sys.stderr, flush=True)
    os.environ["LOCAL_RANK"] = "0"  # the CPU has one number only
    import torch  # noqa: PLC0415 - only a process of a backend needs it
    import torch._utils  # noqa: PLC0415 - the same
    from torch.distributed.fsdp._fully_shard._fully_shard import FSDPModule  # noqa: PLC0415 - the same

    module: Any = torch._utils  # noqa: SLF001 - torchtitan takes its device from there
    module._get_available_device_type = lambda: "cpu"  # noqa: SLF001 - the same
    for name, value in _functions().items():
        setattr(torch.cpu, name, value)
    distributed: Any = torch.distributed
    barrier = distributed.barrier
    distributed.barrier = lambda group=None, async_op=False, **_devices: barrier(group, async_op)
    sharded: Any = FSDPModule
    divide = sharded.set_gradient_divide_factor

    def divide_after_sum(self: Any, factor: float) -> None:
        self.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it sums
        divide(self, factor)

    sharded.set_gradient_divide_factor = divide_after_sum


def adjust(config: Any) -> None:
    """Choose what runs on a CPU."""
    config.optimizer.implementation = "foreach"
    config.compile.enable = False


def _functions() -> dict[str, Any]:
    properties = SimpleNamespace(name="CPU", total_memory=2**40)
    nothing = dict.fromkeys(("reset_peak_memory_stats", "empty_cache"), lambda *_device: None)
    return {
        "get_device_name": lambda _device=None: "CPU",
        "get_device_properties": lambda _device=None: properties,
        "memory_stats": lambda _device=None: {},
        **nothing,
    }
