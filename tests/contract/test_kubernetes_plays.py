"""Plays that ask an API server: they know that there may be none yet, and hear of one that gives no answer."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import load_phases
from tests.contract.test_fetches import tasks_of

if TYPE_CHECKING:
    from pathlib import Path


def test_every_play_that_asks_the_cluster_knows_that_there_may_be_none() -> None:
    """A role that is called without the condition would fail there; preflight asks nobody, verify proves nothing then."""
    without = []
    for phase in (one for one in load_phases(content.playbooks_dir()) if one.name not in ("preflight", "verify")):
        for path in sorted({play.path for play in phase.plays if play.path and play.path.parent.name != "preflight"}):
            for play in yaml.safe_load(path.read_text(encoding="utf-8")):
                if "../vars/kubernetes.yml" not in play.get("vars_files", ()) or "../vars/kubespray.yml" in play["vars_files"]:
                    continue
                calls = [*play.get("roles", ()), *play.get("tasks", ())]
                without += [f"{path.name}: {play['name']}" for call in calls if "_kube_stands" not in str(call.get("when", ""))]

    assert without == []


def test_no_action_raises_where_a_task_judges_its_failure() -> None:
    """Ansible evaluates neither `failed_when` nor `until` of an exception: such an action returns its failure."""
    actions = {path.stem: path for path in content.roles_dir().glob("*/action_plugins/*.py")}
    judged: dict[str, Any] = {}
    for path in content.roles_dir().glob("*/tasks/*.yml"):
        for task in tasks_of(path.parts[-3], path.name):
            judged |= {name: path for name in actions if name in task and task.keys() & {"failed_when", "until", "retries"}}

    assert judged.keys() >= {"kube_drain", "kube_marks", "kube_node_labels"}
    assert {name: str(path) for name, path in judged.items() if raises(actions[name])} == {}


def raises(action: Path) -> bool:
    """Return whether an action raises what it has caught; that the package itself is missing stays an error."""
    caught = [node for node in ast.walk(ast.parse(action.read_text(encoding="utf-8"))) if isinstance(node, ast.ExceptHandler)]
    met = [node for node in caught if node.type is None or ast.unparse(node.type) != "ImportError"]
    return any(isinstance(inner, ast.Raise) for node in met for inner in ast.walk(node))
