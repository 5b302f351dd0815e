"""Plays that use an API server work without a cluster, and report an API server that does not answer."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import load_phases
from tests.contract.test_fetches import tasks_of

if TYPE_CHECKING:
    from pathlib import Path


def test_every_play_on_the_cluster_has_the_condition_that_it_exists() -> None:
    """Without `_kube_available` a role fails before the cluster exists. preflight sends no requests, and verify has its own check."""
    without = []
    for phase in (phase for phase in load_phases(content.playbooks_dir()) if phase.name not in ("preflight", "verify")):
        for path in sorted({play.path for play in phase.plays if play.path and play.path.parent.name != "preflight"}):
            for play in yaml.safe_load(path.read_text(encoding="utf-8")):
                if "../vars/kubernetes.yml" not in play.get("vars_files", ()) or "../vars/kubespray.yml" in play["vars_files"]:
                    continue
                calls = [*play.get("roles", ()), *play.get("tasks", ())]
                without += [f"{path.name}: {play['name']}" for call in calls if "_kube_available" not in str(call.get("when", ""))]

    assert without == []


def test_actions_return_failures_that_tasks_evaluate() -> None:
    """Ansible does not evaluate `failed_when` and `until` after an exception, so these actions return failures."""
    actions = {path.stem: path for path in [*content.roles_dir().glob("*/action_plugins/*.py"), *content.plugins_dir().glob("action/*.py")]}
    evaluated: dict[tuple[str, str], Path] = {}
    for path in content.roles_dir().glob("*/tasks/*.yml"):
        for task in tasks_of(path.parts[-3], path.name):
            names = [name for name in actions if name in task and task.keys() & {"failed_when", "until", "retries"}]
            evaluated |= {(path.parts[-3], name): path for name in names}

    assert evaluated.keys() >= {(role, "kube_nodes") for role in ("kube_drain", "kube_quarantine", "kube_node_labels")}
    assert {role: str(path) for (role, name), path in evaluated.items() if raises(actions[name])} == {}


def raises(action: Path) -> bool:
    """Return whether an action raises in an exception handler, except for a missing package (ImportError)."""
    caught = [node for node in ast.walk(ast.parse(action.read_text(encoding="utf-8"))) if isinstance(node, ast.ExceptHandler)]
    handlers = [node for node in caught if node.type is None or ast.unparse(node.type) != "ImportError"]
    return any(isinstance(inner, ast.Raise) for node in handlers for inner in ast.walk(node))
