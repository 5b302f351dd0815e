"""Connect the processes of a run, one on each node, and check their devices."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from workloads.backends.common.run_facts import RunFacts


def count() -> int:
    """Return the number of nodes."""
    return int(os.environ.get("NNODES", "1"))


def connect(facts: RunFacts) -> None:
    """Connect this process with those of the other nodes through JAX's coordinator, which the first node runs.

    Raises:
        SettingsError: The processes have another number of devices than the run.
    """
    import jax  # noqa: PLC0415 - after the shim

    nodes = count()
    here = facts.devices // nodes
    chosen = ",".join(str(number) for number in range(here))
    jax.config.update("jax_cuda_visible_devices", chosen)  # JAX uses all GPUs of the host otherwise
    jax.config.update("jax_rocm_visible_devices", chosen)
    if nodes > 1:
        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        jax.distributed.initialize(
            coordinator_address=f"{address}:{port}",
            num_processes=nodes,
            process_id=int(os.environ["NODE_RANK"]),
            initialization_timeout=math.ceil(float(facts.settings["parallel.timeout_s"])),
        )
    found = jax.device_count()
    if found != facts.devices:
        kind = jax.devices()[0].platform
        fix = f"pass --nproc with the number of GPUs per node; if JAX finds no GPU, primus-cli backend check {facts.backend}"
        raise SettingsError(f"JAX found {found} devices ({kind}) on {nodes} nodes, and the run is for {facts.devices}", fix=fix)
