"""primus_bootstrap.launch.checks.network with real tools and time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.checks_rig import amd_machine, nvidia_machine
from tests.unit.test_checks_network import PORT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_mtu_of_infiniband_is_read_with_ibv_devinfo(tmp_path: Path) -> None:
    """If the tool is missing or prints something else, the MTU is unknown."""
    machine = nvidia_machine(tmp_path)
    machine.tool("ibv_devinfo", 'if [ "$2" = mlx5_2 ]; then echo "active_mtu: 2048 (4)"; else echo "active_mtu: 4096 (5)"; fi')
    found = machine.verdicts("rdma_mtu")
    machine.print_from("ibv_devinfo", "Failed to query device props")
    garbage = machine.verdicts("rdma_mtu")
    (machine.tools / "ibv_devinfo").unlink()
    missing = machine.records("rdma_mtu")[0]

    assert found.pop("mlx5_2:1") == "fail"
    assert (set(found.values()), set(garbage.values())) == ({"pass"}, {"unknown"})
    assert (missing.verdict, missing.fix) == ("unknown", "install ibverbs-utils")


def test_only_an_increasing_error_counter_fails(tmp_path: Path) -> None:
    """Errors since the last reset pass; a port without counters is unknown."""
    machine = amd_machine(tmp_path)
    (machine.root / "sys/class/infiniband/bnxt_re3/ports/1/counters/symbol_error").unlink()
    timer = threading.Timer(1.0, machine.write, (f"{PORT}/counters/symbol_error", 6))
    timer.start()
    found = {record.device: record for record in machine.records("rdma_errors")}
    timer.join()

    assert (found["bnxt_re2:1"].verdict, found["bnxt_re3:1"].verdict, found["bnxt_re1:1"].verdict) == ("fail", "unknown", "pass")
    assert found["bnxt_re2:1"].found == "counters/symbol_error +1"
