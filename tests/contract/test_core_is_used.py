"""One way to run a program and one way to write a file: core's. Whatever does it by itself is listed here, with the reason."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
# run_command runs a program to its end with a limit. These do something else.
OWN_PROCESSES = {
    "primus_bootstrap/core/commands.py": "is run_command",
    "primus_bootstrap/engine/shim.py": "supervises Ansible; started as a file, so it imports nothing of the package",
    "primus_bootstrap/lab/machine.py": "sudo asks for a password on the terminal",
    "primus_bootstrap/kubernetes/runner.py": "Kubespray takes as long as the fleet is large; output to a log",
    "primus_bootstrap/cli/workload_verbs.py": "streams a log until the user has seen enough",
    "primus_bootstrap/fleet/worker.py": "runs under gevent, which has the limit; a proxy command lives as long as its connection",
    "primus_bootstrap/fleet/fanout.py": "reads answers as they come",
    "primus_bootstrap/core/child_processes.py": "supervises programs of the user, which have no limit",
    "primus_bootstrap/launch/ranks/rank.py": "supervises one rank, which has no limit",
    "workloads/common/results.py": "imports nothing of primus_bootstrap",
    "workloads/bench/_child.py": "imports nothing of primus_bootstrap",
    "workloads/bench/_scratch.py": "imports nothing of primus_bootstrap; a guardian that outlives its parent",
}
# write_atomic replaces a file by bytes that this process has.
OWN_TEMPORARY_FILES = {
    "primus_bootstrap/bundle/charts.py": "a download, which gets its name once its sum is right",
    "primus_bootstrap/bundle/folder.py": "a download, which gets its name once its sum is right",
    "primus_bootstrap/core/atomic_files.py": "is write_atomic",
    "primus_bootstrap/inventory/edit/draft.py": "keeps owner and attributes of the file that it replaces",
    "primus_bootstrap/lab/image.py": "another program writes the file",
    "primus_bootstrap/lab/ssh_keys.py": "another program writes the file",
    "primus_bootstrap/launch/watch/kube_config.py": "a file for a library, removed at once",
    "workloads/common/files.py": "imports nothing of primus_bootstrap",
    "workloads/train/prepare_data.py": "data sets of many gigabytes, written piece by piece",
}
_STARTS = {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}


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


def test_programs_are_run_by_core() -> None:
    """A limit and a policy for bytes that are not UTF-8 cannot be forgotten where run_command asks for them."""
    found = {name for name, tree in SOURCES.items() if any(call in {f"subprocess.{one}" for one in _STARTS} for call, _ in _calls(tree))}

    assert found == set(OWN_PROCESSES), "use core.commands.run_command, or add the file with the reason"


@pytest.mark.parametrize("name", sorted(OWN_PROCESSES))
def test_text_of_other_programs_has_a_policy_for_bad_bytes(name: str) -> None:
    """A program that decodes without `errors` ends at the first byte that is not UTF-8."""
    bad = [
        node.lineno
        for call, node in _calls(SOURCES[name])
        if call.startswith("subprocess.")
        and {"text", "encoding", "universal_newlines"} & (given := {word.arg for word in node.keywords})
        and "errors" not in given
    ]

    assert bad == []


def _replaces_a_file(node: ast.AST) -> bool:
    """Tell whether a node is `path.replace(other)`; that of texts takes two arguments, that of dates names them."""
    method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace"
    return method and len(node.args) == 1 and not node.keywords  # type: ignore[attr-defined]


def test_files_are_replaced_by_core() -> None:
    """A temporary file of one's own forgets fsync, the mode or the clean-up."""
    found = {
        name
        for name, tree in SOURCES.items()
        if any(call in ("tempfile.mkstemp", "tempfile.NamedTemporaryFile", "os.replace") for call, _ in _calls(tree))
        or any(map(_replaces_a_file, ast.walk(tree)))
    }

    assert found == set(OWN_TEMPORARY_FILES), "use core.atomic_files.write_atomic, or add the file with the reason"
