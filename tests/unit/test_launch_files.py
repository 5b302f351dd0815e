"""primus_bootstrap.launch.detect.host_env: the written files, the site file, and errors."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.detect import host_env, site
from tests.unit.launch_rig import expand, run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The tree of the MI300X machine."""
    return expand("mi300x-roce", tmp_path / "root")


def test_the_second_run_changes_nothing(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contents and modification times stay the same."""
    first = run(capsys, machine, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    second = run(capsys, machine, tmp_path / "out")

    assert (first.output["changed"], second.output["changed"]) == (True, False)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_check_mode_prints_the_changes_without_making_them(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output contains the new contents."""
    outcome = run(capsys, machine, tmp_path / "out", "--check")

    assert outcome.output["changed"] is True
    assert any("NCCL_IB_HCA" in difference["after"] for difference in outcome.output["diff"])
    assert not (tmp_path / "out").exists()


def test_the_file_of_an_empty_layer_is_removed(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of others in the folder stay."""
    run(capsys, machine, tmp_path / "out", variables={"A": "1"})
    foreign = tmp_path / "out/etc/primus/env.d/95-local.env"
    foreign.write_text("B=2\n")
    run(capsys, machine, tmp_path / "out")

    assert sorted(path.name for path in foreign.parent.iterdir()) == ["10-base.env", "20-model.env", "30-network.env", "95-local.env"]


def test_files_are_readable_for_all_users_whatever_the_umask(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed mode is corrected."""
    old = os.umask(0o077)
    try:
        run(capsys, machine, tmp_path / "out")
    finally:
        os.umask(old)
    facts = tmp_path / "out/etc/primus/gpu.json"
    modes = {oct(path.stat().st_mode & 0o777) for path in (facts, facts.parent, facts.parent.parent)}
    facts.chmod(0o600)
    second = run(capsys, machine, tmp_path / "out")

    assert modes == {"0o644", "0o755"}
    assert second.output["changed"] is True
    assert oct(facts.stat().st_mode & 0o777) == "0o644"


def test_a_symbolic_link_is_replaced_and_its_target_unchanged(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program does not write through links."""
    target = tmp_path / "target"
    target.write_text("unchanged\n")
    link = tmp_path / "out/etc/primus/gpu.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    run(capsys, machine, tmp_path / "out")

    assert target.read_text() == "unchanged\n"
    assert not link.is_symlink()


def test_a_later_layer_overrides_an_earlier_one(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gpu.json contains origin and reason of the value, and the overridden values."""
    outcome = run(capsys, machine, tmp_path / "out", variables={"NCCL_IB_GID_INDEX": {"value": 1, "reason": "our switches"}})
    entry = next(item for item in outcome.facts["profile"]["variables"] if item["variable"] == "NCCL_IB_GID_INDEX")

    assert (entry["value"], entry["origin"], entry["reason"]) == ("1", "site", "our switches")
    assert entry["overrides"] == [{"origin": "network:roce", "value": "3"}]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- a list", "not a mapping"),
        ("{", "neither YAML nor JSON"),
        ("modle: MI300X", "modle"),
        ("count: eight", "count"),
        ("count: true", "count"),
        ("count: -1", "count"),
        ("nic_deny: mlx5_0", "nic_deny"),
        ("socket_peer: node1", "socket_peer"),
        ("device_group: 'a b'", "device_group"),
        ("device_mode: 432", "device_mode"),
        ("variables: [A]", "variables"),
        ("variables: {1A: x}", "1A"),
        ("variables: {A: yes}", "booleans"),
        ("variables: {A: {worth: 1}}", "must have the keys value and reason only"),
        ("variables: {A: [1]}", "the value of A is [1], not a text"),
        ('variables: {A: "x\\ny"}', "line break"),
    ],
)
def test_a_wrong_site_file_is_an_error_with_a_fix(text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2; the error names the key, and no file is written."""
    file = tmp_path / "site.yml"
    file.write_text(text)
    code = host_env.main(["--sysfs", str(tmp_path), "--out", str(tmp_path / "out"), "--site", str(file), "--json"])
    error = json.loads(capsys.readouterr().out)["error"]

    assert code == 2
    assert named in error["what"] + error["fix"]
    assert error["fix"]
    assert not (tmp_path / "out").exists()


def test_the_site_file_of_the_role_is_parsed() -> None:
    """It contains numbers as text, null for missing numbers, and JSON escapes of characters beyond U+FFFF."""
    values = site.parse_site(json.dumps({"count": "8", "nic_count": None, "variables": {"A": "😀"}}))

    assert (values.count, values.nic_count, values.variables[0].value) == (8, None, "😀")


def test_a_folder_that_cannot_be_written_is_an_error_with_a_fix(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1; the error contains the path."""
    (tmp_path / "out").write_text("a file instead of a folder")
    outcome = run(capsys, machine, tmp_path / "out")

    assert outcome.code == 1
    assert str(tmp_path / "out") in outcome.output["error"]["what"]


def test_amd_hosts_get_udev_rules_if_the_group_exists(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the group the verdict fails, and no rule is written."""
    rules = tmp_path / "out/etc/udev/rules.d/70-primus-gpu.rules"
    without = run(capsys, machine, tmp_path / "out", device_group="train")
    written = rules.exists()
    (tmp_path / "out/etc/group").write_text("root:x:0:\ntrain:x:4000:\n")
    outcome = run(capsys, machine, tmp_path / "out", device_group="train")

    assert (without.verdicts()["gpu_device_group"], written) == ("fail", False)
    assert outcome.verdicts()["gpu_device_group"] == "pass"
    assert 'KERNEL=="renderD*", GROUP="train", MODE="0660"' in rules.read_text()


def test_nvidia_hosts_get_module_options_with_the_groups_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NVIDIA's driver creates its device files itself and accepts ids only."""
    group = tmp_path / "out/etc/group"
    group.parent.mkdir(parents=True)
    group.write_text("train:x:4000:\n")
    run(capsys, expand("h200-ib", tmp_path / "root"), tmp_path / "out", device_group="train", device_mode="0666")
    options = (tmp_path / "out/etc/modprobe.d/primus-nvidia.conf").read_text()

    assert "NVreg_DeviceFileGID=4000 NVreg_DeviceFileMode=0666" in options
    assert not (tmp_path / "out/etc/udev").exists()
