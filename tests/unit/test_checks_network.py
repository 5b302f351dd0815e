"""primus_bootstrap.launch.checks.network: what each check says of RDMA ports and links."""

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


def test_a_port_beyond_those_that_are_expected_need_not_be_up(tmp_path: Path) -> None:
    """As many are up as somebody stated: one more that is down is skipped. With one fewer up, each that is down fails."""
    machine = amd_machine(tmp_path)
    machine.values["rdma_ports"] = int(machine.look("rdma_ports")[0].found) - 1
    machine.write(f"{PORT}/state", "1: DOWN")
    machine.write(f"{PORT}/phys_state", "2: Polling")
    enough = machine.verdicts("rdma_ports")
    machine.write("sys/class/infiniband/bnxt_re3/ports/1/state", "1: DOWN")
    too_few = machine.verdicts("rdma_ports")

    assert (enough[""], enough["bnxt_re2:1"]) == ("pass", "skipped")
    assert (too_few[""], too_few["bnxt_re2:1"], too_few["bnxt_re3:1"]) == ("fail", "fail", "fail")


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


def _slow(machine: Machine, device: str, rate: int = 200) -> None:
    for port in (machine.root / f"sys/class/infiniband/{device}/ports").iterdir():
        (port / "rate").write_text(f"{rate} Gb/sec (4X HDR)\n")


def _rates(machine: Machine) -> dict[str, str]:
    """Return the verdicts of both records, without the ports that pass."""
    found = {**machine.verdicts("rdma_rate"), **machine.verdicts("rdma_rate_beside")}
    return {device: verdict for device, verdict in found.items() if verdict != "pass"}


def test_a_slower_port_of_the_same_model_that_training_does_not_use_fails_nobody(tmp_path: Path) -> None:
    """Storage on the same card model at half the rate: what set-up chose passes; the other is named, and nobody is held back for it."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, "mlx5_4")
    machine.record()
    in_doubt = _rates(machine)
    machine.values.update(rdma_rate_gbit_per_s=400, rdma_ports=8)
    stated = {record.device: record for record in machine.look("rdma_rate_beside")}
    machine.values.clear()
    machine.record(nic_deny=("mlx5_4",))
    denied = {record.device: record for record in machine.look("rdma_rate_beside")}

    assert len(machine.verdicts("rdma_rate")) == 8
    assert in_doubt == {"mlx5_4:1": "unknown", "mlx5_4:2": "unknown"}
    assert {record.verdict for record in (*stated.values(), *denied.values())} == {"skipped"}
    assert stated["mlx5_4:1"].reason == "it runs at 200 Gbit/s; 8 ports of its model run at 400, and 8 are expected"
    assert denied["mlx5_4:2"].reason == "training does not use it: denied by the site (mlx5_4)"


def test_a_port_of_training_that_has_lost_speed_since_it_was_recorded_fails(tmp_path: Path) -> None:
    """It was chosen, so it is judged, though the sieve would reject it now; so it is where all of them have lost speed alike."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, "mlx5_4")
    machine.record(nic_deny=("mlx5_4",))
    _slow(machine, "mlx5_10")
    one = _rates(machine)
    for device in (0, 1, 2, 3, 10, 11, 12, 13):
        _slow(machine, f"mlx5_{device}")

    assert one == {"mlx5_10:1": "fail", "mlx5_4:1": "skipped", "mlx5_4:2": "skipped"}
    assert list(_rates(machine).values()).count("fail") == 8


def test_a_port_that_had_lost_speed_before_it_was_recorded_is_not_hidden(tmp_path: Path) -> None:
    """Nobody chose it. Its GPU has no other port, where all others have one: unknown, not beside the matter. A stated number fails it."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, "mlx5_10")
    machine.record(nic_deny=("mlx5_4",))
    in_doubt = {record.device: record for record in machine.look("rdma_rate")}
    machine.values.update(rdma_rate_gbit_per_s=400, rdma_ports=10)
    stated = _rates(machine)

    assert (in_doubt["mlx5_10:1"].verdict, len(in_doubt)) == ("unknown", 8)
    assert "only port beside a GPU" in in_doubt["mlx5_10:1"].reason
    assert (stated["mlx5_10:1"], stated[""]) == ("fail", "fail")


@pytest.mark.parametrize(("device", "record"), [("mlx5_4", "rdma_rate_beside"), ("mlx5_10", "rdma_rate")])
def test_without_a_record_a_slower_port_is_unknown(device: str, record: str, tmp_path: Path) -> None:
    """Nobody said which ports training uses: one that stands beside no GPU is in doubt by itself, one that a GPU needs with the node."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, device)
    found = machine.verdicts(record)

    assert found[f"{device}:1"] == "unknown"
    assert "fail" not in _rates(machine).values()


def test_what_set_up_says_of_the_rate_is_known_here(tmp_path: Path) -> None:
    """A guard: the sieve's reason by which a port is in doubt, as set-up writes it."""
    machine = nvidia_machine(tmp_path)
    _slow(machine, "mlx5_4")
    machine.record()
    other = read_expected(sysfs.Host(machine.root)).ports["mlx5_4:1"]

    assert other.reason.startswith(rates._SLOWER)


def test_slow_ports_for_training_are_a_fault(tmp_path: Path) -> None:
    """The expected rate must be met by as many ports as are expected, whatever was recorded."""
    machine = nvidia_machine(tmp_path)
    machine.values.update(rdma_rate_gbit_per_s=800, rdma_ports=8)
    before = machine.verdicts("rdma_rate")
    machine.record()

    assert before[""] == "fail"
    assert set(machine.verdicts("rdma_rate").values()) == {"fail"}


def test_a_port_for_storage_does_not_stand_in_for_one_of_training(tmp_path: Path) -> None:
    """Eight ports were chosen of nine; one of them goes down, or its device is gone: eight that are up are not these eight."""
    machine = amd_machine(tmp_path)
    machine.record(nic_deny=("mlx5_0",))
    good = machine.look("rdma_ports")[0]
    machine.write(f"{PORT}/state", "1: DOWN")
    machine.write(f"{PORT}/phys_state", "3: Disabled")
    down = {record.device: record for record in machine.look("rdma_ports")}
    (machine.root / "sys/class/infiniband/bnxt_re2").rename(tmp_path / "gone")
    gone = machine.look("rdma_ports")[0]

    assert (good.verdict, good.found) == ("pass", "8")
    assert (down[""].verdict, down["bnxt_re2:1"].verdict, gone.verdict) == ("fail", "fail", "fail")
    assert (down[""].found, gone.reason) == ("7", "not ACTIVE, or its device is missing: bnxt_re2:1")


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
