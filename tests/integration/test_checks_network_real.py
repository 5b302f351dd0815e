"""primus_bootstrap.launch.checks.network: what each check says of RDMA ports and links."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.unit.checks_rig import amd_machine, nvidia_machine
from tests.unit.test_checks_network import PORT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_mtu_of_infiniband_comes_from_a_tool(tmp_path: Path) -> None:
    """Each port is asked for by name; without the tool, or with another answer, the MTU is unknown."""
    machine = nvidia_machine(tmp_path)
    machine.tool("ibv_devinfo", 'if [ "$2" = mlx5_2 ]; then echo "active_mtu: 2048 (4)"; else echo "active_mtu: 4096 (5)"; fi')
    found = machine.verdicts("rdma_mtu")
    machine.says("ibv_devinfo", "Failed to query device props")
    garbage = machine.verdicts("rdma_mtu")
    (machine.tools / "ibv_devinfo").unlink()
    missing = machine.look("rdma_mtu")[0]

    assert found.pop("mlx5_2:1") == "fail"
    assert (set(found.values()), set(garbage.values())) == ({"pass"}, {"unknown"})
    assert (missing.verdict, missing.fix) == ("unknown", "install ibverbs-utils")


"""primus_bootstrap.launch.checks.network: what each check says of RDMA ports and links."""


def test_only_errors_that_are_counted_now_are_a_fault(tmp_path: Path) -> None:
    """Five symbol errors since the reset are no verdict; one more while somebody looks is. A port without counters is unknown."""
    machine = amd_machine(tmp_path)
    (machine.root / "sys/class/infiniband/bnxt_re3/ports/1/counters/symbol_error").unlink()
    timer = threading.Timer(1.0, machine.write, (f"{PORT}/counters/symbol_error", 6))
    timer.start()
    found = {record.device: record for record in machine.look("rdma_errors")}
    timer.join()

    assert (found["bnxt_re2:1"].verdict, found["bnxt_re3:1"].verdict, found["bnxt_re1:1"].verdict) == ("fail", "unknown", "pass")
    assert found["bnxt_re2:1"].found == "counters/symbol_error +1"
