"""primus_bootstrap.launch.detect.host_env on nine sysfs trees, two of them damaged."""

from __future__ import annotations

import os
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.launch_rig import MACHINES, TREES, Outcome, damage, expand, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Look = Callable[..., Outcome]


@pytest.fixture
def look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Look:
    """Return a function that expands a machine and runs host-env on it."""

    def look_at(machine: str, *arguments: str, **site: Any) -> Outcome:
        return run(capsys, expand(machine, tmp_path / "root"), tmp_path / "out", *arguments, **site)

    return look_at


@pytest.mark.parametrize("machine", MACHINES)
def test_every_machine_gives_its_golden_files(machine: str, look: Look) -> None:
    """The written files are equal to those in tests/data/sysfs/golden; UPDATE_GOLDEN=1 updates them."""
    outcome = look(machine, variables={"NCCL_IB_TC": {"value": 106, "reason": "the fabric's lossless class"}})
    golden = TREES / "golden" / machine
    if os.environ.get("UPDATE_GOLDEN"):
        shutil.rmtree(golden, ignore_errors=True)
        shutil.copytree(outcome.out / "etc", golden)
    expected = {str(path.relative_to(golden)): path.read_text() for path in golden.rglob("*") if path.is_file()}
    found = {str(path.relative_to(outcome.out / "etc")): path.read_text() for path in (outcome.out / "etc").rglob("*") if path.is_file()}

    assert found == expected


def test_mi300x_uses_the_eight_ports_near_its_gpus(look: Look) -> None:
    """Of eleven ports the front end, the port that is down and the storage card are rejected, each with its reason."""
    outcome = look("mi300x-roce")

    assert outcome.facts["model"] == "MI300X"
    assert outcome.facts["count"] == 8
    assert outcome.facts["fp8"] == "fnuz"
    assert [item["reason"] for item in outcome.facts["ignored"]] == ["a display adapter"]
    ports = outcome.ports()
    assert {name for name, reason in ports.items() if reason == "chosen"} == {f"bnxt_re{index}:1" for index in range(8)}
    assert "cluster's route" in ports["bnxt_re8:1"]
    assert "DOWN" in ports["bnxt_re9:1"]
    assert "PCIe switch" in ports["mlx5_0:1"]
    assert 'NCCL_IB_GID_INDEX="3"' in outcome.env("30-network.env")
    assert 'NCCL_SOCKET_IFNAME="=bond0.20"' in outcome.env("30-network.env")
    assert [device["nics"] for device in outcome.facts["devices"]] == [[f"bnxt_re{index}:1"] for index in range(8)]


def test_a_storage_port_does_not_replace_a_denied_compute_port(look: Look) -> None:
    """Although it has the same rate."""
    ports = look("mi300x-roce", nic_deny=["rdma7"]).ports()

    assert "denied" in ports["bnxt_re7:1"]
    assert "PCIe switch" in ports["mlx5_0:1"]


def test_cards_of_amd_pensando_have_variables_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only if all chosen ports are such cards. Broadcom's have others; a mixture has none."""
    root = expand("mi300x-roce", tmp_path / "root")
    found: list[tuple[str, bool, str]] = []
    for cards in ((), range(7), range(8)):
        for number in cards:
            (root / f"sys/class/infiniband/bnxt_re{number}/device/vendor").write_text("0x1dd8\n")
        outcome = run(capsys, root, tmp_path / f"out{len(found)}")
        values = dict(line.split("=", 1) for line in outcome.env("30-network.env").splitlines() if line.startswith(("NCCL", "UCCL")))
        family = outcome.facts["network"]["nic_family"]
        found.append((family, "NCCL_IB_USE_INLINE" in values, values.get("UCCL_IB_MAX_INFLIGHT_BYTES", "")))

    assert found == [("bnxt", False, '"1572864"'), ("", False, ""), ("ainic", True, '"4194304"')]


@pytest.mark.parametrize(("driver", "family"), [("bnxt_en", "bnxt"), ("vfio-pci", "")])
def test_a_card_with_another_driver_is_of_no_family(tmp_path: Path, capsys: pytest.CaptureFixture[str], driver: str, family: str) -> None:
    """The driver distinguishes cards of one vendor. If it cannot be read, the vendor decides, as on the other machines of these tests."""
    root = expand("mi300x-roce", tmp_path / "root")
    for number in range(8):
        (root / f"sys/class/infiniband/bnxt_re{number}/device/driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")
    outcome = run(capsys, root, tmp_path / "out")

    assert outcome.facts["network"]["nic_family"] == family
    assert ("UCCL_IB_MAX_INFLIGHT_BYTES" in outcome.env("30-network.env")) is bool(family)


def test_h200_uses_infiniband_without_a_gid_index(look: Look) -> None:
    """The storage card of the same rate is rejected, and NVSwitches do not count as GPUs."""
    outcome = look("h200-ib")

    assert (outcome.facts["model"], outcome.facts["count"], outcome.facts["arch"]) == ("H200", 8, "sm_90")
    assert outcome.facts["network"]["kind"] == "ib"
    assert outcome.facts["network"]["nic_family"] == "connectx"
    assert outcome.facts["network"]["hca_list"] == "=" + ",".join(f"mlx5_{n}:1" for n in (0, 1, 2, 3, 10, 11, 12, 13))
    assert "GID" not in outcome.env("30-network.env")
    assert outcome.facts["network"]["socket_interface"]["name"] == "eno1"


def test_a_card_of_mi250x_counts_as_two(look: Look) -> None:
    """Four cards are eight GPUs, as in the runtimes."""
    outcome = look("mi250x", count=8)

    assert (outcome.facts["count"], outcome.facts["cards"]) == (8, 4)
    assert outcome.verdicts()["gpu_count"] == "pass"


def test_a_variable_without_its_fact_stays_unset(look: Look) -> None:
    """RoCE ports without an IPv4 GID give no NCCL_IB_GID_INDEX; gpu.json contains the reason."""
    outcome = look("mi250x")
    unset = {item["variable"]: item["reason"] for item in outcome.facts["profile"]["unset"]}

    assert "NCCL_IB_GID_INDEX" not in outcome.env("30-network.env")
    assert "mlx5_0:1: none" in unset["NCCL_IB_GID_INDEX"]


def test_virtual_functions_in_a_guest_count_as_gpus(look: Look) -> None:
    """A guest with eight virtual functions of MI300X."""
    outcome = look("mi300x-vf", model="MI300X", count=8)

    assert (outcome.facts["virtual"], outcome.facts["network"]["kind"]) == (True, "none")
    assert outcome.verdicts() == {"gpu_model": "pass", "gpu_count": "pass", "rdma_ports": "skipped", "socket_interface": "pass"}


def test_mixed_models_fail_and_have_no_model_layer(look: Look) -> None:
    """The reason contains both models with their counts."""
    outcome = look("mixed")
    record = outcome.output["verdicts"][0]

    assert (outcome.code, record["verdict"], outcome.facts["model"]) == (4, "fail", "")
    assert "2 x MI300X" in record["reason"]
    assert "2 x MI325X" in record["reason"]
    assert not (outcome.out / "etc/primus/env.d/20-model.env").exists()


def test_an_unknown_accelerator_makes_the_host_unknown(look: Look) -> None:
    """The reason contains address and id; a consumer card and an FPGA do not count."""
    outcome = look("unknown")
    record = outcome.output["verdicts"][0]

    assert (outcome.code, record["verdict"], outcome.facts["count"]) == (0, "unknown", 2)
    assert "0000:05:00.0 (1002:7fff)" in record["reason"]
    assert {item["device_id"] for item in outcome.facts["ignored"]} == {"1002:73bf", "10ee:5000"}


def test_a_host_without_gpus_fails_only_with_an_expected_count(look: Look) -> None:
    """Otherwise it is skipped."""
    outcome = look("cpu", count=8)
    records = {record["check"]: record for record in outcome.output["verdicts"]}

    assert records["gpu_model"]["verdict"] == "skipped"
    assert (records["gpu_count"]["verdict"], records["gpu_count"]["reason"]) == ("fail", "no GPU on the PCI bus")
    assert "gpu_env_count" in records["gpu_count"]["fix"]
    assert outcome.env("30-network.env") == 'GLOO_SOCKET_IFNAME="eno1"'


def test_damaged_numa_and_rdma_files_do_not_affect_the_gpus(look: Look) -> None:
    """The reason of each damaged port states what could not be read."""
    outcome = look("broken-details")

    assert (outcome.facts["model"], outcome.facts["count"]) == ("MI300X", 4)
    assert {device["numa_node"] for device in outcome.facts["devices"]} == {None}
    assert outcome.ports() == {
        "mlx5_0:1": "chosen",
        "mlx5_1:1": "its state is unreadable, not ACTIVE",
        "mlx5_2:1": "its rate cannot be read",
        "mlx5_3:1": "its state is unreadable, not ACTIVE",
        "mlx5_5:1": "its link layer is neither InfiniBand nor Ethernet",
    }
    assert outcome.verdicts()["socket_interface"] == "unknown"


def test_a_gpu_that_cannot_be_read_makes_the_host_unknown(look: Look) -> None:
    """Each unreadable device that may be a GPU is a problem."""
    outcome = look("broken-ids", count=1)

    assert outcome.verdicts()["gpu_model"] == "unknown"
    assert outcome.verdicts()["gpu_count"] == "unknown"
    assert [problem.split(":")[1] for problem in outcome.facts["problems"]] == ["26", "46", "85"]


def test_an_unexpected_model_fails_and_its_files_are_written(look: Look) -> None:
    """The files describe the detected hardware."""
    outcome = look("h200-ib", model="H100")

    assert (outcome.code, outcome.verdicts()["gpu_model"]) == (4, "fail")
    assert outcome.facts["model"] == "H200"


def test_a_missing_sysfs_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not a host without GPUs."""
    outcome = run(capsys, tmp_path / "nowhere", tmp_path / "out", model="MI300X", count=8, nic_count=8)

    assert {outcome.verdicts()[check] for check in ("gpu_model", "gpu_count", "rdma_ports")} == {"unknown"}


DAMAGES = [
    "missing",
    "dangling",
    "loop",
    "folder",
    "\x00\xff",
    "",
    "-1",
    "0x",
    "9" * 5000,
    "ÿ: ACTIVE",
    "nan Gb/sec",
    "0xffffffffffffffffffff",
]


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_tree_gives_a_verdict_and_no_traceback(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve random files or folders of a tree are damaged."""
    generator = random.Random(seed)  # noqa: S311 - repeatable damage
    root = expand(generator.choice(["mi300x-roce", "h200-ib", "mi250x"]), tmp_path / "root")
    paths = sorted(root.rglob("*"))
    for path in generator.sample(paths, 12):
        if os.path.lexists(path):
            damage(path, generator.choice(DAMAGES))
    outcome = run(capsys, root, tmp_path / "out")

    assert outcome.code in (0, 4)
    assert outcome.facts["verdict"] in ("ok", "none", "mixed", "unknown")
