"""The role `kube_upgrade`: which steps are refused, and which workers go together."""

from __future__ import annotations

from typing import Any

import pytest

from primus_bootstrap import content
from primus_bootstrap.inventory.kubespray_release import load_release
from tests.unit.role_module import _load

judge: Any = _load("kube_upgrade_filter", content.roles_dir() / "kube_upgrade/filter_plugins/kube_upgrade.py")
NEWEST = load_release().newest
MINOR = int(NEWEST.split(".")[1])


def node(name: str, version: str, *, held: bool = False) -> dict[str, Any]:
    """Return a node as the API tells it."""
    spec = {"unschedulable": True} if held else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"nodeInfo": {"kubeletVersion": f"v{version}"}}}


@pytest.mark.parametrize(
    ("running", "wanted", "says"),
    [
        ([f"1.{MINOR - 1}.2"], NEWEST, ""),
        ([NEWEST, f"1.{MINOR - 1}.2"], NEWEST, ""),
        ([f"1.{MINOR - 2}.2"], NEWEST, "leaves a minor version out"),
        ([f"1.{MINOR + 1}.0"], NEWEST, "cannot go back"),
        ([], "1.20.2", "installs"),
    ],
)
def test_a_step_is_judged_by_what_the_nodes_run(running: list[str], wanted: str, says: str) -> None:
    """One minor at a time, also from the two versions of a killed upgrade; two minors, back, and outside are refused."""
    said = judge.kube_upgrade_refusal(running, wanted)

    assert bool(said) == bool(says)
    assert says in said
    assert not said or "Fix: " in said


def test_an_upgrade_goes_on_where_it_was_killed() -> None:
    """Workers of the version that take pods are left out; one that still holds them back, or that the API does not know, goes again."""
    nodes = [node("a", NEWEST), node("b", NEWEST, held=True), node("c", f"1.{MINOR - 1}.2")]

    assert judge.kube_upgrade_versions(nodes) == sorted({f"1.{MINOR - 1}.2", NEWEST})
    assert judge.kube_upgrade_left(["a", "b", "c", "d"], nodes, NEWEST) == ["b", "c", "d"]


def test_workers_go_rack_by_rack() -> None:
    """Racks in order, large ones in parts, hosts without a rack last; nobody is forgotten and nobody goes twice."""
    racks = {"a": "r2", "b": "r1", "c": "r1", "d": "r1"}

    assert judge.kube_upgrade_batches(["a", "b", "c", "d", "e"], racks, 0) == [["b", "c", "d"], ["a"], ["e"]]
    assert judge.kube_upgrade_batches(["a", "b", "c", "d", "e"], racks, 2) == [["b", "c"], ["d"], ["a"], ["e"]]
    assert judge.kube_upgrade_batches([], {}, 0) == []
