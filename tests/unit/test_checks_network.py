"""primus_bootstrap.launch.checks.network on file trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.checks.expected import read_expected
from primus_bootstrap.launch.checks.network import rates
from primus_bootstrap.launch.detect import sysfs
from tests.unit.checks_rig import amd_machine, nvidia_machine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.checks_rig import Machine

PORT = "sys/class/infiniband/bnxt_re2/ports/1"


def test_too_few_active_ports_fail_with_the_name_of_the_port(tmp_path: Path) -> None:
    """One of the expected ports is down: the count and the port fail."""
    machine = amd_machine(tmp_path)
    up = int(machine.records("rdma_ports")[0].found)
    machine.values["rdma_ports"] = up
    good = machine.records("rdma_ports")[0]
    machine.write(f"{PORT}/state", "1: DOWN")
    machine.write(f"{PORT}/phys_state", "2: Polling")
    bad = {record.device: record for record in machine.records("rdma_ports")}

    assert (good.verdict, bad[""].verdict, bad[""].found) == ("pass", "fail", str(up - 1))
    assert "bnxt_re2:1" in bad[""].reason
    assert bad["bnxt_re2:1"].verdict == "fail"


def test_without_an_expected_number_an_unconnected_port_is_skipped(tmp_path: Path) -> None:
    """A connected port that is not ACTIVE fails."""
    machine = amd_machine(tmp_path)
    machine.write(f"{PORT}/state", "1: DOWN")
    machine.write(f"{PORT}/phys_state", "3: Disabled")
    machine.write("sys/class/infiniband/bnxt_re3/ports/1/state", "2: INIT")
    machine.write("sys/class/infiniband/bnxt_re4/ports/1/state", "")
    found = machine.verdicts("rdma_ports")

    assert (found["bnxt_re2:1"], found["bnxt_re3:1"], found["bnxt_re4:1"]) == ("skipped", "fail", "unknown")


def test_a_port_beyond_the_expected_number_may_be_down(tmp_path: Path) -> None:
    """If the expected number of ports is up, other ports are skipped. If one is missing, every port that is down fails."""
    machine = amd_machine(tmp_path)
    machine.values["rdma_ports"] = int(machine.records("rdma_ports")[0].found) - 1
    machine.write(f"{PORT}/state", "1: DOWN")
    machine.write(f"{PORT}/phys_state", "2: Polling")
    enough = machine.verdicts("rdma_ports")
    machine.write("sys/class/infiniband/bnxt_re3/ports/1/state", "1: DOWN")
    too_few = machine.verdicts("rdma_ports")

    assert (enough[""], enough["bnxt_re2:1"]) == ("pass", "skipped")
    assert (too_few[""], too_few["bnxt_re2:1"], too_few["bnxt_re3:1"]) == ("fail", "fail", "fail")


def test_a_node_without_devices_fails_if_ports_are_expected(tmp_path: Path) -> None:
    """If no ports are expected, it is skipped."""
    machine = amd_machine(tmp_path)
    (machine.root / "sys/class/infiniband").rename(tmp_path / "removed")
    without = machine.records("rdma_ports")
    machine.values["rdma_ports"] = 8

    assert [record.verdict for record in without] == ["skipped"]
    assert [record.verdict for record in machine.records("rdma_ports")] == ["fail"]


# record, path and its new content, device, verdict
WRONG = [
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
def test_a_fault_of_one_port_changes_the_verdict_of_that_port_only(
    record: str, file: tuple[str, str], device: str, verdict: str, tmp_path: Path
) -> None:
    """The other ports pass."""
    machine = amd_machine(tmp_path)
    machine.write(*file)
    found = machine.verdicts(record)

    assert (found.pop(device), set(found.values())) == (verdict, {"pass"})


def _slow(machine: Machine, device: str, rate: int = 200) -> None:
    for port in (machine.root / f"sys/class/infiniband/{device}/ports").iterdir():
        (port / "rate").write_text(f"{rate} Gb/sec (4X HDR)\n")


def _rates(machine: Machine) -> dict[str, str]:
    """Return the verdicts of both rate records, without passes."""
    found = {**machine.verdicts("rdma_rate"), **machine.verdicts("rdma_rate_beside")}
    return {device: verdict for device, verdict in found.items() if verdict != "pass"}


def test_a_slower_port_that_training_does_not_use_does_not_fail(tmp_path: Path) -> None:
    """A storage port of the same card model at half the rate is unknown, or skipped if the inventory decides it."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, "mlx5_4")
    machine.record()
    unclear = _rates(machine)
    machine.values.update(rdma_rate_gbit_per_s=400, rdma_ports=8)
    stated = {record.device: record for record in machine.records("rdma_rate_beside")}
    machine.values.clear()
    machine.record(nic_deny=("mlx5_4",))
    denied = {record.device: record for record in machine.records("rdma_rate_beside")}

    assert len(machine.verdicts("rdma_rate")) == 8
    assert unclear == {"mlx5_4:1": "unknown", "mlx5_4:2": "unknown"}
    assert {record.verdict for record in (*stated.values(), *denied.values())} == {"skipped"}
    assert stated["mlx5_4:1"].reason == "the port runs at 200 Gbit/s; 8 ports of its model run at 400 Gbit/s, and 8 are expected"
    assert denied["mlx5_4:2"].reason == "training does not use this port: denied by the site (mlx5_4)"


def test_a_training_port_that_became_slower_since_it_was_recorded_fails(tmp_path: Path) -> None:
    """Even if all training ports became slower."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, "mlx5_4")
    machine.record(nic_deny=("mlx5_4",))
    _slow(machine, "mlx5_10")
    one = _rates(machine)
    for device in (0, 1, 2, 3, 10, 11, 12, 13):
        _slow(machine, f"mlx5_{device}")

    assert one == {"mlx5_10:1": "fail", "mlx5_4:1": "skipped", "mlx5_4:2": "skipped"}
    assert list(_rates(machine).values()).count("fail") == 8


def test_a_port_that_was_degraded_before_it_was_recorded_is_reported(tmp_path: Path) -> None:
    """It is the only port of its GPU, and all other GPUs have a fast one: unknown. With an expected number of ports it fails."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, "mlx5_10")
    machine.record(nic_deny=("mlx5_4",))
    unclear = {record.device: record for record in machine.records("rdma_rate")}
    machine.values.update(rdma_rate_gbit_per_s=400, rdma_ports=10)
    stated = _rates(machine)

    assert (unclear["mlx5_10:1"].verdict, len(unclear)) == ("unknown", 8)
    assert "only port near one GPU" in unclear["mlx5_10:1"].reason
    assert (stated["mlx5_10:1"], stated[""]) == ("fail", "fail")


@pytest.mark.parametrize(("device", "record"), [("mlx5_4", "rdma_rate_beside"), ("mlx5_10", "rdma_rate")])
def test_without_a_record_a_slower_port_is_unknown(device: str, record: str, tmp_path: Path) -> None:
    """The unknown is in rdma_rate if the port is the only one near a GPU, else in rdma_rate_beside."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, device)
    found = machine.verdicts(record)

    assert found[f"{device}:1"] == "unknown"
    assert "fail" not in _rates(machine).values()


def test_the_check_knows_the_reason_that_gpu_env_records_for_a_slow_port(tmp_path: Path) -> None:
    """The check compares with the text that nics.choose_ports writes."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, "mlx5_4")
    machine.record()
    other = read_expected(sysfs.Host(machine.root)).ports["mlx5_4:1"]

    assert other.reason.startswith(rates._SLOWER)


def test_too_few_ports_with_the_expected_rate_fail(tmp_path: Path) -> None:
    """Whatever gpu.json contains."""
    machine = nvidia_machine(tmp_path)
    machine.values.update(rdma_rate_gbit_per_s=800, rdma_ports=8)
    before = machine.verdicts("rdma_rate")
    machine.record()

    assert before[""] == "fail"
    assert set(machine.verdicts("rdma_rate").values()) == {"fail"}


def test_a_storage_port_does_not_replace_a_training_port(tmp_path: Path) -> None:
    """Eight of nine ports are training ports. One of them is down or missing: the eight ports that are up are not the training ports."""
    machine = amd_machine(tmp_path)
    machine.record(nic_deny=("mlx5_0",))
    good = machine.records("rdma_ports")[0]
    machine.write(f"{PORT}/state", "1: DOWN")
    machine.write(f"{PORT}/phys_state", "3: Disabled")
    down = {record.device: record for record in machine.records("rdma_ports")}
    (machine.root / "sys/class/infiniband/bnxt_re2").rename(tmp_path / "removed")
    missing = machine.records("rdma_ports")[0]

    assert (good.verdict, good.found) == ("pass", "8")
    assert (down[""].verdict, down["bnxt_re2:1"].verdict, missing.verdict) == ("fail", "fail", "fail")
    assert (down[""].found, missing.reason) == ("7", "not ACTIVE or missing: bnxt_re2:1")


def test_a_roce_port_without_an_address_fails(tmp_path: Path) -> None:
    """Without a RoCE v2 GID with an IPv4 address, NCCL cannot route."""
    machine = amd_machine(tmp_path)
    for gid in (machine.root / PORT / "gids").iterdir():
        gid.write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
    found = machine.verdicts("rdma_gid")

    assert (found.pop("bnxt_re2:1"), set(found.values())) == ("fail", {"pass"})


def test_the_expected_firmware_applies_to_its_board_id_only(tmp_path: Path) -> None:
    """Devices with other board ids are compared with each other."""
    machine = amd_machine(tmp_path)
    machine.values["rdma_firmware"] = {"BCM957608": "232.0.0.0"}
    found = machine.verdicts("rdma_firmware")

    assert found["bnxt_re0"] == "fail"
    assert {found[name] for name in found if not name.startswith("bnxt_re")} <= {"pass"}


def test_without_an_active_port_rate_mtu_errors_and_gid_are_unknown(tmp_path: Path) -> None:
    """All ports are down."""
    machine = nvidia_machine(tmp_path)
    for state in (machine.root / "sys/class/infiniband").glob("*/ports/*/state"):
        state.write_text("1: DOWN\n")

    assert [machine.records(name)[0].verdict for name in ("rdma_rate", "rdma_mtu", "rdma_errors", "rdma_gid")] == ["unknown"] * 4
