"""Checks of the role `node_health` with the real counting program of gpu_env."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.unit.health_rig import write
from tests.unit.launch_rig import damage, expand
from tests.unit.test_node_health_checks import count_settings, gpus, records_of, verdicts_in
from tests.unit.test_node_health_checks import counter as counter

if TYPE_CHECKING:
    from pathlib import Path


def test_gpus_are_counted_with_the_program_of_gpu_env(tmp_path: Path, counter: str) -> None:
    """A missing GPU fails with both numbers; an unreadable bus or device is unknown."""
    tree = expand("mi300x-roce", tmp_path / "tree")
    whole = records_of(gpus, count_settings(counter, tree, expected=8))
    (tree / "sys/bus/pci/devices/0000:05:00.0").unlink()
    missing = records_of(gpus, count_settings(counter, tree, expected=8))
    nothing = records_of(gpus, count_settings(counter, tmp_path / "nothing", expected=8))
    damage(tree / "sys/bus/pci/devices/0000:26:00.0/vendor", "folder")
    unreadable = records_of(gpus, count_settings(counter, tree, expected=8))

    assert [verdicts_in(found)["gpu_count"] for found in (whole, missing, nothing, unreadable)] == ["pass", "fail", "unknown", "unknown"]
    assert (missing[0]["found"], missing[0]["expected"], missing[0]["source"]) == ("7", "8", "hosts.yaml: gpu_env_count")


def test_expected_number_of_gpus_defaults_to_the_host_record(tmp_path: Path, counter: str) -> None:
    """The role gpu_env writes the record. Without it the result is unknown."""
    tree = expand("mi300x-roce", tmp_path / "tree")
    facts = write(tmp_path, {"gpu.json": json.dumps({"count": 9})}) / "gpu.json"
    found = records_of(gpus, count_settings(counter, tree, expected=0, facts=str(facts)))

    assert verdicts_in(found) == {"gpu_count": "fail"}
    assert (found[0]["expected"], found[0]["source"]) == ("9", str(facts))
    assert verdicts_in(records_of(gpus, count_settings(counter, tree, expected=0))) == {"gpu_count": "unknown"}
