"""Code runs programs and replaces files through `primus_bootstrap.core`; exceptions are listed with a reason."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
# run_command waits for a program with a time limit. These files need something else.
PROCESS_EXCEPTIONS = {
    "primus_bootstrap/core/commands.py": "is run_command",
    "primus_bootstrap/engine/shim.py": "supervises Ansible; it is started as a file and imports nothing of the package",
    "primus_bootstrap/lab/machine.py": "sudo asks for a password on the terminal",
    "primus_bootstrap/kubernetes/runner.py": "runs Kubespray without a time limit and writes its output to a log",
    "primus_bootstrap/cli/workload_verbs.py": "streams a log until the user interrupts it",
    "primus_bootstrap/fleet/worker.py": "gevent sets the limit; a proxy command runs as long as its connection",
    "primus_bootstrap/fleet/fanout.py": "reads answers as they come",
    "primus_bootstrap/core/child_processes.py": "supervises user programs without a limit",
    "primus_bootstrap/launch/ranks/rank.py": "supervises one rank without a limit",
    "workloads/common/results.py": "imports nothing of primus_bootstrap",
    "workloads/bench/_child.py": "imports nothing of primus_bootstrap",
    "workloads/bench/_scratch.py": "imports nothing of primus_bootstrap; starts a process that outlives its parent",
}
# write_atomic writes bytes in memory. These files need something else.
FILE_EXCEPTIONS = {
    "primus_bootstrap/bundle/charts.py": "renames a download after its checksum is verified",
    "primus_bootstrap/bundle/folder.py": "renames a download after its checksum is verified",
    "primus_bootstrap/core/atomic_files.py": "is write_atomic",
    "primus_bootstrap/lab/image.py": "another program writes the file",
    "primus_bootstrap/lab/ssh_keys.py": "another program writes the file",
    "primus_bootstrap/launch/watch/kube_config.py": "temporary file for a library",
    "workloads/common/files.py": "imports nothing of primus_bootstrap",
    "workloads/train/prepare_data.py": "writes data sets of many gigabytes in parts",
}
_PROCESS_FUNCTIONS = {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("primus_bootstrap", "workloads"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


SOURCES = dict(_sources())


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of a module by `module.function`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            yield f"{node.func.value.id}.{node.func.attr}", node


def test_programs_run_through_core() -> None:
    """run_command requires a time limit and handles output that is not UTF-8."""
    found = {
        name
        for name, tree in SOURCES.items()
        if any(call in {f"subprocess.{function}" for function in _PROCESS_FUNCTIONS} for call, _ in _calls(tree))
    }

    assert found == set(PROCESS_EXCEPTIONS), "use core.commands.run_command, or add the file with the reason"


@pytest.mark.parametrize("name", sorted(PROCESS_EXCEPTIONS))
def test_decoded_output_sets_an_error_handler(name: str) -> None:
    """Without `errors`, the first byte that is not UTF-8 raises an exception."""
    bad = [
        node.lineno
        for call, node in _calls(SOURCES[name])
        if call.startswith("subprocess.")
        and {"text", "encoding", "universal_newlines"} & (given := {word.arg for word in node.keywords})
        and "errors" not in given
    ]

    assert bad == []


def _replaces_a_file(node: ast.AST) -> bool:
    """Return whether a node is `path.replace(other)`. `str.replace` has two arguments, `datetime.replace` has keywords."""
    method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace"
    return method and len(node.args) == 1 and not node.keywords  # type: ignore[attr-defined]


def test_files_are_replaced_through_core() -> None:
    """write_atomic calls fsync, keeps the mode and cleans up."""
    found = {
        name
        for name, tree in SOURCES.items()
        if any(call in ("tempfile.mkstemp", "tempfile.NamedTemporaryFile", "os.replace") for call, _ in _calls(tree))
        or any(map(_replaces_a_file, ast.walk(tree)))
    }

    assert found == set(FILE_EXCEPTIONS), "use core.atomic_files.write_atomic, or add the file with the reason"
