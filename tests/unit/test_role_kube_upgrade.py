"""Role `kube_upgrade`: allowed version steps and batches of workers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from ansible.errors import AnsibleFilterError

from primus_bootstrap import content
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.kubernetes import commands
from primus_bootstrap.kubernetes.cordons import Cordons
from primus_bootstrap.kubernetes.node_marks import is_cordoned
from tests.unit.kube_nodes_rig import FakeApi
from tests.unit.role_module import load_file

if TYPE_CHECKING:
    from pathlib import Path

filters: Any = load_file(content.roles_dir() / "kube_upgrade/filter_plugins/kube_upgrade.py", "kube_upgrade_filter")
NEWEST = load_release().newest
MINOR = int(NEWEST.split(".")[1])


def node(name: str, version: str, *, held: bool = False, ready: bool = True) -> dict[str, Any]:
    """Return a node as the API returns it."""
    spec = {"unschedulable": True} if held else {}
    status = {"nodeInfo": {"kubeletVersion": f"v{version}"}, "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}]}
    return {"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec, "status": status}


def drained(api: FakeApi, name: str) -> bool:
    """Return whether Kubespray drains and uncordons a node: `needs_cordoning` of roles/upgrade/pre-upgrade (v2.31.0)."""
    return not is_cordoned(api.nodes[name])


@pytest.mark.parametrize(
    ("running", "target", "expected"),
    [
        ([f"1.{MINOR - 1}.2"], NEWEST, ""),
        ([NEWEST, f"1.{MINOR - 1}.2"], NEWEST, ""),
        ([f"1.{MINOR - 2}.2"], NEWEST, "skips a minor version"),
        ([f"1.{MINOR + 1}.0"], NEWEST, "does not support downgrades"),
        ([], "1.20.2", "installs"),
    ],
)
def test_version_step_is_checked_against_the_nodes(running: list[str], target: str, expected: str) -> None:
    """One minor release at a time, also after an interrupted upgrade. Larger steps and downgrades are refused."""
    error = filters.kube_upgrade_refusal(running, target)

    assert bool(error) == bool(expected)
    assert expected in error
    assert not error or "Fix: " in error


def test_interrupted_upgrade_continues(tmp_path: Path) -> None:
    """The second run drains and uncordons the nodes that the first run cordoned, once. Other cordons stay."""
    old = f"1.{MINOR - 1}.2"
    api = FakeApi(node("a", NEWEST), node("b", old), node("c", old), node("foreign", NEWEST, held=True), node("d", old))
    cordons = Cordons(tmp_path / "cordons.json", lambda: api, {}, str)
    batch, workers = commands.upgrade(NEWEST, workers=[["b", "c"]])[-1], dict.fromkeys(("a", "b", "c", "foreign", "d", "new"), "")

    def killed() -> None:
        with cordons.around(batch):
            for name in ("b", "c"):
                api.nodes[name]["spec"]["unschedulable"] = True
            api.nodes["b"]["status"]["nodeInfo"]["kubeletVersion"] = f"v{NEWEST}"
            raise KeyboardInterrupt

    def left() -> list[str]:
        unfinished = filters.kube_upgrade_unfinished(str(cordons.path))
        found: list[str] = filters.kube_upgrade_pending(workers, list(api.nodes.values()), NEWEST, unfinished)
        return found

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert filters.kube_upgrade_versions(list(api.nodes.values())) == sorted({old, NEWEST})
    assert left() == ["b", "c", "d", "new"]
    with cordons.around(batch):
        assert [drained(api, name) for name in ("b", "c", "foreign")] == [True, True, False]
        api.nodes["c"]["status"]["nodeInfo"]["kubeletVersion"] = f"v{NEWEST}"
    assert left() == ["d", "new"]
    assert [name for name, one in api.nodes.items() if is_cordoned(one)] == ["foreign"]


def test_unreadable_record_is_an_error(tmp_path: Path) -> None:
    """Unfinished nodes are unknown then. Without a record there are none."""
    (tmp_path / "cordons.json").write_text(json.dumps([]), encoding="utf-8")

    assert filters.kube_upgrade_unfinished(str(tmp_path / "nothing.json")) == []
    with pytest.raises(AnsibleFilterError, match="cannot be read"):
        filters.kube_upgrade_unfinished(str(tmp_path / "cordons.json"))


def test_workers_that_cannot_be_upgraded_are_reported() -> None:
    """An unreachable or NotReady worker would abort the upgrade. A host without a Node may join."""
    nodes = [node("a", NEWEST), node("node-b", NEWEST, ready=False), node("c", NEWEST, ready=False)]
    workers = {"a": "", "b": "node-b", "c": "", "new": ""}

    assert filters.kube_upgrade_unavailable(workers, nodes, ["a", "b", "new"]) == {"b": "not Ready", "c": "does not answer"}
    assert filters.kube_upgrade_pending({"b": "node-b"}, nodes, NEWEST, []) == []


def test_workers_are_upgraded_rack_by_rack() -> None:
    """Racks in order, large ones split, hosts without a rack last; each worker once."""
    racks = {"a": "r2", "b": "r1", "c": "r1", "d": "r1"}

    assert filters.kube_upgrade_batches(["a", "b", "c", "d", "e"], racks, 0) == [["b", "c", "d"], ["a"], ["e"]]
    assert filters.kube_upgrade_batches(["a", "b", "c", "d", "e"], racks, 2) == [["b", "c"], ["d"], ["a"], ["e"]]
    assert filters.kube_upgrade_batches([], {}, 0) == []
