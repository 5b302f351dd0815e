"""The check `rdma_port` of the role `node_health`, on a sysfs tree of a host with eight rails."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.health_rig import HEALTH, load_program, write
from tests.unit.launch_rig import TREES, expand
from tests.unit.test_node_health_checks import records_of, verdicts_in

rdma: Any = load_program(HEALTH / "check_rdma_port.py")


@pytest.fixture
def rails(tmp_path: Path) -> dict[str, Any]:
    """Return the settings of the RDMA check for a host with eight rails, a bond of two frontend ports (one is down) and a storage port."""
    root = expand("mi300x-roce", tmp_path / "root")
    facts = TREES / "golden/mi300x-roce/primus/gpu.json"
    return {"ports": [], "count": 0, "facts": str(facts), "sysfs": str(root)}


def set_port(settings: dict[str, Any], port: str, **states: str) -> None:
    """Change the state of a port in sysfs."""
    device, _, number = port.partition(":")
    for name, state in states.items():
        Path(settings["sysfs"], "sys/class/infiniband", device, "ports", number, name).write_text(f"{state}\n")


def test_ports_that_jobs_use_must_be_up(rails: dict[str, Any]) -> None:
    """One record for each training port. The frontend port that is down and the storage port are not among them."""
    found = records_of(rdma, rails)

    assert [record["device"] for record in found] == [f"bnxt_re{number}:1" for number in range(8)]
    assert verdicts_in(found) == {"rdma_port": "pass"}


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ({"state": "1: DOWN", "phys_state": "2: Polling"}, "DOWN Polling"),
        ({"state": "2: INIT"}, "INIT LinkUp"),
        ({"phys_state": "3: Disabled"}, "ACTIVE Disabled"),
    ],
)
def test_dead_rail_fails_and_is_named(rails: dict[str, Any], states: dict[str, str], shown: str) -> None:
    """The reason, with which the node is drained, has device and port. Only this port fails."""
    set_port(rails, "bnxt_re3:1", **states)
    failed = [record for record in records_of(rdma, rails) if record["verdict"] == "fail"]

    assert [(record["device"], record["reason"]) for record in failed] == [("bnxt_re3:1", f"RDMA port bnxt_re3:1 is {shown}")]
    assert failed[0]["fix"]


def test_missing_rdma_device_fails_and_unreadable_state_is_unknown(rails: dict[str, Any]) -> None:
    """A network card that left the bus has no folder; a state that cannot be read is neither a pass nor a fail."""
    devices = Path(rails["sysfs"], "sys/class/infiniband")
    shutil.rmtree(devices / "bnxt_re1")
    (devices / "bnxt_re2/ports/1/state").unlink()
    found = {record["device"]: (record["verdict"], record["reason"]) for record in records_of(rdma, rails)}

    assert found["bnxt_re1:1"] == ("fail", "RDMA port bnxt_re1:1 is missing")
    assert found["bnxt_re2:1"] == ("unknown", "the state of RDMA port bnxt_re2:1 cannot be read")


def test_stated_ports_replace_those_of_gpu_env(rails: dict[str, Any]) -> None:
    """Patterns of devices and ports. Without gpu.json they count too; a pattern that nothing matches fails."""
    stated = {**rails, "facts": "/nowhere/gpu.json", "ports": ["mlx5_*", "bnxt_re9:1", "bnxt_re9", "ionic_*"]}
    found = [(record["device"], record["verdict"]) for record in records_of(rdma, stated)]

    assert found == [("mlx5_0:1", "pass"), ("bnxt_re9:1", "fail"), ("ionic_*", "fail")]


def test_virtual_functions_are_ignored(rails: dict[str, Any]) -> None:
    """A pattern of the physical functions matches their virtual functions by name; these belong to guests."""
    device = Path(rails["sysfs"], "sys/class/infiniband/mlx5_7")
    (device / "ports/1").mkdir(parents=True)
    (device / "device").mkdir()
    (device / "device/physfn").symlink_to(Path(rails["sysfs"], "sys/class/infiniband/mlx5_0/device").resolve())
    set_port(rails, "mlx5_7:1", state="1: DOWN", phys_state="3: Disabled")

    assert [record["device"] for record in records_of(rdma, {**rails, "ports": ["mlx5_*"]})] == ["mlx5_0:1"]


def test_port_that_was_down_when_gpu_env_ran_is_missed_by_number(rails: dict[str, Any], tmp_path: Path) -> None:
    """It is not in gpu.json. With gpu_env_nic_count the reason names the ports that are down."""
    document = json.loads(Path(rails["facts"]).read_text("utf-8"))
    lost = next(port for port in document["network"]["ports"] if port["name"] == "bnxt_re5:1")
    lost.update(chosen=False, state="DOWN")
    facts = write(tmp_path, {"gpu.json": json.dumps(document)}) / "gpu.json"
    set_port(rails, "bnxt_re5:1", state="1: DOWN")
    changed = {**rails, "facts": str(facts)}
    failed = [record for record in records_of(rdma, {**changed, "count": 8}) if record["verdict"] == "fail"]

    assert verdicts_in(records_of(rdma, changed)) == {"rdma_port": "pass"}
    assert [record["reason"] for record in failed] == ["7 RDMA ports for training, 8 are expected; not up: bnxt_re5:1, bnxt_re9:1"]


@pytest.mark.parametrize(("text", "verdict"), [(None, "skipped"), ('{"network": {"ports": []}}', "skipped"), ("{", "unknown")])
def test_host_without_training_ports_is_skipped(tmp_path: Path, text: str | None, verdict: str) -> None:
    """As is a host without gpu.json, such as a Slurm node outside gpu_node. A damaged gpu.json is unknown."""
    if text is not None:
        write(tmp_path, {"gpu.json": text})
    settings = {"ports": [], "count": 0, "facts": str(tmp_path / "gpu.json"), "sysfs": str(tmp_path)}

    assert verdicts_in(records_of(rdma, settings)) == {"rdma_port": verdict}
