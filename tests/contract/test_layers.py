"""The import-linter contracts hold, and each of them detects a violation. What import-linter cannot express is tested here."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "primus_bootstrap"
# Modules outside `cli` that run as a process of their own on the controller.
PROGRAMS = {"primus_bootstrap/engine/shim.py", "primus_bootstrap/fleet/worker.py"}

VIOLATIONS = [
    pytest.param("primus_bootstrap/inventory/cluster.py", "import primus_bootstrap.engine.plan_values", "Layers of the package", id="up"),
    pytest.param(
        "primus_bootstrap/inventory/schema/names.py",
        "import primus_bootstrap.inventory.rules.context",
        "Layers of inventory",
        id="inventory",
    ),
    pytest.param(
        "primus_bootstrap/inventory/source/yaml_values.py",
        "if TYPE_CHECKING:\n    from primus_bootstrap.inventory.source.source_map import SourceMap",
        "No import cycles",
        id="cycle",
    ),
    pytest.param("primus_bootstrap/lab/lab_values.py", "import primus_bootstrap.lab.up", "No import cycles", id="cycle-lab"),
    pytest.param("primus_bootstrap/bench/results/reader.py", "import primus_bootstrap.bench.judging.floors", "Layers of bench", id="bench"),
    pytest.param("primus_bootstrap/bench/results/reader.py", "import primus_bootstrap.engine.plan", "Layers of the package", id="sideways"),
    pytest.param("primus_bootstrap/engine/events.py", "import primus_bootstrap.engine.run", "Layers of the engine", id="engine"),
    pytest.param("primus_bootstrap/bundle/apt.py", "import primus_bootstrap.lab.apt_settings", "Layers of the package", id="bundle"),
    pytest.param("primus_bootstrap/core/commands.py", "import primus_bootstrap.content", "core imports nothing of the package", id="core"),
    pytest.param("primus_bootstrap/launch/__init__.py", "from primus_bootstrap import content", "launch imports only core", id="launch"),
    pytest.param("primus_bootstrap/cli/console.py", "import ansible_runner", "ansible_runner only in engine", id="runner"),
    pytest.param("primus_bootstrap/engine/plan_values.py", "import rich", "typer and rich only in cli", id="rich"),
    pytest.param("primus_bootstrap/inventory/cluster.py", "import pyinfra", "pyinfra and gevent only in fleet", id="pyinfra"),
    pytest.param(
        "primus_bootstrap/kubernetes/drain.py",
        "import kubernetes.client",
        "the library kubernetes only in kubernetes/api.py",
        id="kubernetes",
    ),
    pytest.param("primus_bootstrap/core/errors.py", "import torch", "torch nowhere in the package", id="torch"),
]


def _lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run([str(program), "--no-cache"], cwd=tree, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy the package and its contracts to a folder that the test may change."""
    shutil.copytree(ROOT / "primus_bootstrap", tmp_path / "primus_bootstrap", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_all_contracts_hold(tree: Path) -> None:
    """import-linter reports no violation."""
    done = _lint_imports(tree)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("module", "line", "contract"), VIOLATIONS)
def test_a_violation_is_detected(tree: Path, module: str, line: str, contract: str) -> None:
    """A wrong import breaks the contract that forbids it."""
    path = tree / module
    path.write_text(path.read_text() + f"\n{line}\n")

    done = _lint_imports(tree)

    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout


def test_only_the_view_loads_an_inventory_with_ansible() -> None:
    """No module but inventory/ansible/view.py imports Ansible's inventory or variable manager."""
    importers = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "primus_bootstrap").rglob("*.py")
        if re.search(r"ansible\.(inventory|vars)\.manager", path.read_text(encoding="utf-8"))
    }

    assert importers == {"primus_bootstrap/inventory/ansible/view.py"}


def _imports(path: Path) -> Iterator[str]:
    """Yield the names of the modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).with_suffix("").parts[: -node.level] if node.level else ()
            yield ".".join((*package, *filter(None, [node.module])))


def _importers(folder: Path, allowed: set[str]) -> set[str]:
    """Return the files of a folder that import a top-level package which is not allowed, with its name."""
    return {
        f"{path.relative_to(ROOT)}: {name}" for path in folder.rglob("*.py") for name in _imports(path) if name.split(".")[0] not in allowed
    }


def test_programs_on_nodes_need_only_python_and_pyyaml() -> None:
    """Nodes have no other packages; `core` does without PyYAML, too."""
    python = {*sys.stdlib_module_names, "primus_bootstrap"}

    assert _importers(PACKAGE / "core", python) == set()
    assert _importers(PACKAGE / "launch", {*python, "yaml"}) == set()


def test_workloads_and_the_package_do_not_import_each_other() -> None:
    """GPU hosts run the workloads without this package, and the controller has no torch."""
    trainers = {*sys.stdlib_module_names, "workloads", "torch", "torchao", "yaml", "safetensors"}
    # A program of a backend runs in the environment of this backend.
    backends = {*trainers, "numpy", "typing_extensions", "megatron", "torchtitan", "maxtext", "jax", "absl"}
    backends |= {"trl", "peft", "transformers", "accelerate", "datasets"}
    assert {name for name in _importers(ROOT / "workloads", trainers) if not name.startswith("workloads/backends/")} == set()
    assert _importers(ROOT / "workloads" / "backends", backends) == set()
    assert {path for path in PACKAGE.rglob("*.py") for name in _imports(path) if name.split(".")[0] == "workloads"} == set()


def _talks(node: ast.AST) -> bool:
    """Return whether a node prints, prompts or exits."""
    text = ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
    return text in {"print", "input", "getpass.getpass", "sys.exit", "sys.stdout", "SystemExit"}


def test_only_the_command_line_prints_prompts_and_exits() -> None:
    """On the controller; `launch` runs on nodes, where it is the command line."""
    files = {path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in ("cli", "launch")}
    found = {str(path.relative_to(ROOT)) for path in files if any(map(_talks, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))}

    assert found == PROGRAMS
