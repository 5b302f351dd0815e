"""What host-env writes: only differences, atomically, quoted so that systemd and shells read the same; and its input and errors."""

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
    """The same findings give the same bytes, and files are not even touched."""
    first = run(capsys, machine, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    second = run(capsys, machine, tmp_path / "out")

    assert (first.output["changed"], second.output["changed"]) == (True, False)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == before


def test_check_mode_writes_nothing_and_shows_the_difference(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--check says what would change, with the content."""
    outcome = run(capsys, machine, tmp_path / "out", "--check")

    assert outcome.output["changed"] is True
    assert any("NCCL_IB_HCA" in difference["after"] for difference in outcome.output["diff"])
    assert not (tmp_path / "out").exists()


def test_a_layer_that_became_empty_loses_its_file(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that the site takes back is gone, and so is a file that holds nothing else; others' files stay."""
    run(capsys, machine, tmp_path / "out", variables={"A": "1"})
    foreign = tmp_path / "out/etc/primus/env.d/95-local.env"
    foreign.write_text("B=2\n")
    run(capsys, machine, tmp_path / "out")

    assert sorted(path.name for path in foreign.parent.iterdir()) == ["10-base.env", "20-model.env", "30-network.env", "95-local.env"]


def test_files_are_readable_for_everybody_whatever_the_umask(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hardened umask of root must not hide the environment from users; a mode that was changed is put right."""
    old = os.umask(0o077)
    try:
        run(capsys, machine, tmp_path / "out")
    finally:
        os.umask(old)
    facts = tmp_path / "out/etc/primus/gpu.json"
    modes = {oct(path.stat().st_mode & 0o777) for path in (facts, facts.parent, facts.parent.parent)}
    facts.chmod(0o600)
    again = run(capsys, machine, tmp_path / "out")

    assert modes == {"0o644", "0o755"}
    assert again.output["changed"] is True
    assert oct(facts.stat().st_mode & 0o777) == "0o644"


def test_a_link_in_the_way_is_replaced_and_its_target_kept(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Writing through a link would change another file."""
    target = tmp_path / "precious"
    target.write_text("keep\n")
    link = tmp_path / "out/etc/primus/gpu.json"
    link.parent.mkdir(parents=True)
    link.symlink_to(target)
    run(capsys, machine, tmp_path / "out")

    assert target.read_text() == "keep\n"
    assert not link.is_symlink()


def test_a_later_layer_wins_and_the_origin_is_kept(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gpu.json says where the value comes from, why, and what it replaced."""
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
        ("variables: {A: {worth: 1}}", "other keys"),
        ("variables: {A: [1]}", "A needs a text"),
        ('variables: {A: "x\\ny"}', "line break"),
    ],
)
def test_a_wrong_site_file_is_refused_with_a_fix(text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, nothing written, the key is named and a fix given."""
    file = tmp_path / "site.yml"
    file.write_text(text)
    code = host_env.main(["--sysfs", str(tmp_path), "--out", str(tmp_path / "out"), "--site", str(file), "--json"])
    error = json.loads(capsys.readouterr().out)["error"]

    assert code == 2
    assert named in error["what"] + error["fix"]
    assert error["fix"]
    assert not (tmp_path / "out").exists()


def test_what_the_role_sends_is_understood() -> None:
    """Numbers from the command line arrive as text, absent ones as null, letters beyond U+FFFF as JSON escapes."""
    got = site.parse_site(json.dumps({"count": "8", "nic_count": None, "variables": {"A": "😀"}}))

    assert (got.count, got.nic_count, got.variables[0].value) == (8, None, "😀")


def test_a_folder_that_cannot_be_written_is_an_error_with_a_fix(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 1 with the path and a fix, not a traceback."""
    (tmp_path / "out").write_text("a file where a folder is needed")
    outcome = run(capsys, machine, tmp_path / "out")

    assert outcome.code == 1
    assert str(tmp_path / "out") in outcome.output["error"]["what"]


def test_device_rules_follow_the_vendor_and_need_the_group(machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AMD gets udev rules once the group exists; without it the verdict fails and no rule is written."""
    rules = tmp_path / "out/etc/udev/rules.d/70-primus-gpu.rules"
    without = run(capsys, machine, tmp_path / "out", device_group="train")
    written = rules.exists()
    (tmp_path / "out/etc/group").write_text("root:x:0:\ntrain:x:4000:\n")
    outcome = run(capsys, machine, tmp_path / "out", device_group="train")

    assert (without.verdicts()["gpu_device_group"], written) == ("fail", False)
    assert outcome.verdicts()["gpu_device_group"] == "pass"
    assert 'KERNEL=="renderD*", GROUP="train", MODE="0660"' in rules.read_text()


def test_nvidia_gets_module_options_with_the_groups_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NVIDIA's driver makes its nodes itself and takes a number, not a name."""
    group = tmp_path / "out/etc/group"
    group.parent.mkdir(parents=True)
    group.write_text("train:x:4000:\n")
    run(capsys, expand("h200-ib", tmp_path / "root"), tmp_path / "out", device_group="train", device_mode="0666")
    options = (tmp_path / "out/etc/modprobe.d/primus-nvidia.conf").read_text()

    assert "NVreg_DeviceFileGID=4000 NVreg_DeviceFileMode=0666" in options
    assert not (tmp_path / "out/etc/udev").exists()
