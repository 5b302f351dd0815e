"""FOR TESTS ONLY: run MaxText on the CPU, with as many virtual devices as the run has GPUs.

MaxText itself supports this. The speed and the memory of such a run mean nothing. Tests switch it on with PRIMUS_TEST_CPU_SHIM=1; every
start prints a warning.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "PRIMUS_TEST_CPU_SHIM"
_WARNING = (
    "WARNING: THE CPU SHIM FOR TESTS IS ON (PRIMUS_TEST_CPU_SHIM): MaxText runs on virtual devices of the CPU. The speed and the memory of"
    " this run mean nothing. Unset the variable for a real run."
)


def wanted() -> bool:
    """Return whether the tests ask for the shim."""
    return os.environ.get(VARIABLE, "") == "1"


def install(devices: int) -> None:
    """Give this process virtual devices. Call it before JAX is imported."""
    print(_WARNING, file=sys.stderr, flush=True)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()


def arguments(words: list[str]) -> list[str]:
    """Return the arguments for the CPU: its attention has no fused kernel."""
    return [*words, "hardware=cpu", "attention=dot_product"]
