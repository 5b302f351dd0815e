"""primus_bootstrap.launch.checks.network: what each check says of RDMA ports and links."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.unit.checks_rig import amd_machine, nvidia_machine

if TYPE_CHECKING:
    from pathlib import Path

PORT = "sys/class/infiniband/bnxt_re2/ports/1"


def test_ports_are_counted_against_what_is_expected(tmp_path: Path) -> None:
    """One port of eight is down: the count fails and names it, and the port itself fails."""
    machine = amd_machine(tmp_path)
    up = int(machine.look("rdma_ports")[0].found)
    machine.values["rdma_ports"] = up
    good = machine.look("rdma_ports")[0]
    machine.write(f"{PORT}/state", "1: DOWN")
    machine.write(f"{PORT}/phys_state", "2: Polling")
    bad = {record.device: record for record in machine.look("rdma_ports")}

    assert (good.verdict, bad[""].verdict, bad[""].found) == ("pass", "fail", str(up - 1))
    assert "bnxt_re2:1" in bad[""].reason
    assert bad["bnxt_re2:1"].verdict == "fail"


def test_a_port_without_a_cable_is_judged_only_where_ports_are_expected(tmp_path: Path) -> None:
    """Nobody said how many: a port that is not connected is skipped, one that is connected and not ACTIVE fails."""
    machine = amd_machine(tmp_path)
    machine.write(f"{PORT}/state", "1: DOWN")
    machine.write(f"{PORT}/phys_state", "3: Disabled")
    machine.write("sys/class/infiniband/bnxt_re3/ports/1/state", "2: INIT")
    machine.write("sys/class/infiniband/bnxt_re4/ports/1/state", "")
    found = machine.verdicts("rdma_ports")

    assert (found["bnxt_re2:1"], found["bnxt_re3:1"], found["bnxt_re4:1"]) == ("skipped", "fail", "unknown")


def test_a_node_that_lost_all_its_devices_fails_where_some_are_expected(tmp_path: Path) -> None:
    """No device is skipped where none is expected, and a fail where eight are."""
    machine = amd_machine(tmp_path)
    (machine.root / "sys/class/infiniband").rename(tmp_path / "gone")
    without = machine.look("rdma_ports")
    machine.values["rdma_ports"] = 8

    assert [record.verdict for record in without] == ["skipped"]
    assert [record.verdict for record in machine.look("rdma_ports")] == ["fail"]


# record, path and what it then holds, device, verdict
WRONG = [
    ("rdma_rate", (f"{PORT}/rate", "100 Gb/sec (1X HDR)"), "bnxt_re2:1", "fail"),
    ("rdma_rate", (f"{PORT}/rate", "fast"), "bnxt_re2:1", "unknown"),
    ("rdma_mtu", ("sys/class/net/rdma2/mtu", "1500"), "bnxt_re2:1", "fail"),
    ("rdma_mtu", ("sys/class/net/rdma2/mtu", ""), "bnxt_re2:1", "unknown"),
    ("rdma_firmware", ("sys/class/infiniband/bnxt_re2/fw_ver", "230.0.1.0"), "bnxt_re2", "fail"),
    ("rdma_firmware", ("sys/class/infiniband/bnxt_re2/fw_ver", ""), "bnxt_re2", "unknown"),
    ("rdma_pcie", ("sys/class/infiniband/bnxt_re2/device/current_link_width", "8"), "bnxt_re2", "fail"),
    ("rdma_pcie", ("sys/class/infiniband/bnxt_re2/device/current_link_speed", "16.0 GT/s PCIe"), "bnxt_re2", "fail"),
    ("rdma_pcie", ("sys/class/infiniband/bnxt_re2/device/current_link_width", "Unknown"), "bnxt_re2", "unknown"),
    ("link_flaps", ("sys/class/net/rdma2/carrier_down_count", "400"), "rdma2", "fail"),
]


@pytest.mark.parametrize(("record", "file", "device", "verdict"), WRONG, ids=[f"{row[0]}-{row[3]}-{i}" for i, row in enumerate(WRONG)])
def test_one_port_with_one_thing_wrong(record: str, file: tuple[str, str], device: str, verdict: str, tmp_path: Path) -> None:
    """The verdict is on that port; its like keep their pass."""
    machine = amd_machine(tmp_path)
    machine.write(*file)
    found = machine.verdicts(record)

    assert (found.pop(device), set(found.values())) == (verdict, {"pass"})


def test_slow_ports_for_storage_are_no_fault_and_slow_ports_for_training_are(tmp_path: Path) -> None:
    """The expected rate must be met by as many ports as are expected; slower ones beside them are by build."""
    machine = nvidia_machine(tmp_path)
    for port in (1, 2):
        machine.write(f"sys/class/infiniband/mlx5_4/ports/{port}/rate", "200 Gb/sec (4X HDR)")
    machine.write("sys/class/infiniband/mlx5_4/device/device", "0x101d")
    machine.values.update(rdma_rate_gbit_per_s=400, rdma_ports=8)
    good = machine.verdicts("rdma_rate")
    machine.values["rdma_rate_gbit_per_s"] = 800
    slow = machine.verdicts("rdma_rate")

    assert set(good.values()) == {"pass"}
    assert slow[""] == "fail"


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


def test_a_roce_port_without_an_address_fails(tmp_path: Path) -> None:
    """Without a RoCE v2 GID with an IPv4 address NCCL cannot route."""
    machine = amd_machine(tmp_path)
    for gid in (machine.root / PORT / "gids").iterdir():
        gid.write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    found = machine.verdicts("rdma_gid")

    assert (found.pop("bnxt_re2:1"), set(found.values())) == ("fail", {"pass"})


def test_expected_firmware_goes_by_board(tmp_path: Path) -> None:
    """The inventory states a version for a board; other boards are compared among themselves."""
    machine = amd_machine(tmp_path)
    machine.values["rdma_firmware"] = {"BCM957608": "232.0.0.0"}
    found = machine.verdicts("rdma_firmware")

    assert found["bnxt_re0"] == "fail"
    assert {found[name] for name in found if not name.startswith("bnxt_re")} <= {"pass"}


def test_no_active_port_leaves_rate_and_mtu_unknown(tmp_path: Path) -> None:
    """There is nothing to read from ports that are all down."""
    machine = nvidia_machine(tmp_path)
    for state in (machine.root / "sys/class/infiniband").glob("*/ports/*/state"):
        state.write_text("1: DOWN\n")

    assert [machine.look(name)[0].verdict for name in ("rdma_rate", "rdma_mtu", "rdma_errors", "rdma_gid")] == ["unknown"] * 4
