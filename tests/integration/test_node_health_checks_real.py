"""The checks of the role `node_health`, each on a host that is a folder or on lines as the kernel and its programs print them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.unit.health_rig import write
from tests.unit.launch_rig import damage, expand
from tests.unit.test_node_health_checks import count_settings, gpus, judged, words
from tests.unit.test_node_health_checks import counter as counter

if TYPE_CHECKING:
    from pathlib import Path


def test_gpus_are_counted_with_the_program_of_gpu_env(tmp_path: Path, counter: str) -> None:
    """All of them pass, one that is missing fails with both numbers; a bus or a device that cannot be read is unknown."""
    tree = expand("mi300x-roce", tmp_path / "tree")
    whole = judged(gpus, count_settings(counter, tree, expected=8))
    (tree / "sys/bus/pci/devices/0000:05:00.0").unlink()
    missing = judged(gpus, count_settings(counter, tree, expected=8))
    nothing = judged(gpus, count_settings(counter, tmp_path / "nothing", expected=8))
    damage(tree / "sys/bus/pci/devices/0000:26:00.0/vendor", "folder")
    unreadable = judged(gpus, count_settings(counter, tree, expected=8))

    assert [words(found)["gpu_count"] for found in (whole, missing, nothing, unreadable)] == ["pass", "fail", "unknown", "unknown"]
    assert (missing[0]["found"], missing[0]["expected"], missing[0]["source"]) == ("7", "8", "hosts.yaml: gpu_env_count")


def test_without_a_number_in_the_inventory_the_hosts_own_record_counts(tmp_path: Path, counter: str) -> None:
    """What gpu_env found when it was applied is expected; without that record the answer is unknown."""
    tree = expand("mi300x-roce", tmp_path / "tree")
    facts = write(tmp_path, {"gpu.json": json.dumps({"count": 9})}) / "gpu.json"
    found = judged(gpus, count_settings(counter, tree, expected=0, facts=str(facts)))

    assert words(found) == {"gpu_count": "fail"}
    assert (found[0]["expected"], found[0]["source"]) == ("9", str(facts))
    assert words(judged(gpus, count_settings(counter, tree, expected=0))) == {"gpu_count": "unknown"}
