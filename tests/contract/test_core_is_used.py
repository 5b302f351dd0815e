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
    "primus_bootstrap/lab/vm/virtual_machine.py": "supervises QEMU for as long as the machine runs",
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
    "primus_bootstrap/bundle/image_layout.py": "renames a download after its checksum is verified",
    "primus_bootstrap/core/atomic_files.py": "is write_atomic",
    "primus_bootstrap/lab/image.py": "another program writes the file",
    "primus_bootstrap/lab/vm/vm_image.py": "another program writes the file",
    "primus_bootstrap/lab/ssh_keys.py": "another program writes the file",
    "primus_bootstrap/launch/watch/kube_config.py": "temporary file for a library",
    "workloads/common/files.py": "imports nothing of primus_bootstrap",
    "workloads/train/prepare_data.py": "writes data sets of many gigabytes in parts",
}
# Roles import core's file functions as `ansible.module_utils.atomic_files`. These programs and plug-ins of roles need something else.
ROLE_FILE_EXCEPTIONS = {
    "plugins/action/host_certificate.py": "runs in Ansible's Python, which may not have the package; syncs the file itself",
    "plugins/module_utils/atomic_files.py": "is write_atomic",
    "plugins/modules/pinned_program.py": "installs a program of hundreds of megabytes after its checksum is verified",
    "plugins/module_utils/host_files.py": "replaces links",
    "roles/airgap/action_plugins/airgap_fill.py": "temporary archive for a transfer",
    "roles/airgap/library/airgap_store.py": "renames a file of many gigabytes after its checksum is verified",
    "roles/host_origin/module_utils/origin_record.py": "renames a folder when its files are complete",
    "roles/kube_common/library/kube_release.py": "temporary file for helm",
    "roles/node_health/files/health/atomic_files.py": "is write_atomic",
    "roles/object_store/files/object_store_metrics.py": "one program file; it writes the file again each minute, so nothing is synced",
    "roles/oci_registry/files/registry_certificate.py": "one program file that imports nothing; syncs the file itself",
    "roles/primus_exporter/files/primus_exporter.py": "one program file; it writes the file again each minute, so nothing is synced",
}
# Roles import run_command as `ansible.module_utils.commands`. These programs and plug-ins of roles need something else.
ROLE_PROCESS_EXCEPTIONS = {
    "plugins/module_utils/child_processes.py": "supervises user programs without a limit",
    "plugins/module_utils/commands.py": "is run_command",
    "roles/bench/library/bench_node.py": "ends the whole process group of a step, and keeps its output in files",
    "roles/container_runtime/library/container_runtime_effects.py": "runs the program as another account",
    "roles/envoy/library/envoy_configuration.py": "runs the program as another account",
    "roles/juicefs/files/juicefs_claim.py": "one program file that imports nothing",
    "roles/kube_backup/files/etcd_member.py": "installed with the programs that import it; they import nothing else",
    "roles/node_health/files/health/finding.py": "the program that runs the check ends it and its child processes",
    "roles/node_health/files/health/run_checks.py": "ends the process group of a check, which inherits the lock of the check",
    "roles/oci_registry/files/registry_certificate.py": "one program file that imports nothing",
    "roles/preflight/files/probe_host.py": "sent to a host as text, so it can import nothing",
    "roles/primus_exporter/files/primus_exporter.py": "one program file; it ends the process group of a source",
    "roles/quarantine/files/look_host.py": "sent to a host as text, so it can import nothing",
    "roles/slurm/files/epilog.py": "one program file that imports nothing: slurmd drains a node whose epilog fails",
    "roles/slurm/files/shared/child_processes.py": "is that of core",
    "roles/slurm/files/shared/commands.py": "is run_command",
}
_PROCESS_FUNCTIONS = {"run", "Popen", "call", "check_call", "check_output", "getoutput", "getstatusoutput"}


def _sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


SOURCES = dict(_sources("primus_bootstrap", "workloads"))
ROLE_SOURCES = {name: tree for name, tree in _sources("plugins", "roles") if "/molecule/" not in name}


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of a module by `module.function`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            yield f"{node.func.value.id}.{node.func.attr}", node


def test_programs_run_through_core() -> None:
    """run_command requires a time limit and handles output that is not UTF-8."""
    assert _process_starters(SOURCES) == set(PROCESS_EXCEPTIONS), "use core.commands.run_command, or add the file with the reason"


def test_roles_run_programs_through_core() -> None:
    """A module that ends a program after its time limit also ends the descendants of the program."""
    advice = "use ansible.module_utils.commands.run_command, or add the file with the reason"

    assert _process_starters(ROLE_SOURCES) == set(ROLE_PROCESS_EXCEPTIONS), advice


def _process_starters(sources: dict[str, ast.Module]) -> set[str]:
    """Return the files that start processes themselves."""
    starts = {f"subprocess.{function}" for function in _PROCESS_FUNCTIONS}
    return {name for name, tree in sources.items() if any(call in starts for call, _ in _calls(tree))}


def _processes(tree: ast.Module) -> Iterator[tuple[str, int, set[str | None]]]:
    """Yield each start of a process: the function, the line, and the names of its arguments (None: `**`)."""
    for call, node in _calls(tree):
        if call.startswith("subprocess.") and (function := call.partition(".")[2]) in _PROCESS_FUNCTIONS:
            yield function, node.lineno, {word.arg for word in node.keywords}


@pytest.mark.parametrize("name", sorted([*PROCESS_EXCEPTIONS, *ROLE_SOURCES]))
def test_decoded_output_sets_an_error_handler(name: str) -> None:
    """Without `errors`, the first byte that is not UTF-8 raises an exception."""
    bad = [
        line
        for _, line, given in _processes({**SOURCES, **ROLE_SOURCES}[name])
        if {"text", "encoding", "universal_newlines"} & given and "errors" not in given
    ]

    assert bad == []


@pytest.mark.parametrize("name", sorted(ROLE_SOURCES))
def test_programs_of_roles_have_a_time_limit(name: str) -> None:
    """A program that hangs must not stop a run for ever."""
    bad = [line for function, line, given in _processes(ROLE_SOURCES[name]) if function != "Popen" and not {"timeout", None} & given]

    assert bad == []


def _replaces_a_file(node: ast.AST) -> bool:
    """Return whether a node is `path.replace(other)`. `str.replace` has two arguments, `datetime.replace` has keywords."""
    method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "replace"
    return method and len(node.args) == 1 and not node.keywords  # type: ignore[attr-defined]


def _file_writers(sources: dict[str, ast.Module]) -> set[str]:
    """Return the files that replace files themselves."""
    return {
        name
        for name, tree in sources.items()
        if any(call in ("tempfile.mkstemp", "tempfile.NamedTemporaryFile", "os.replace") for call, _ in _calls(tree))
        or any(map(_replaces_a_file, ast.walk(tree)))
    }


def test_files_are_replaced_through_core() -> None:
    """write_atomic calls fsync, keeps the mode and cleans up."""
    assert _file_writers(SOURCES) == set(FILE_EXCEPTIONS), "use core.atomic_files.write_atomic, or add the file with the reason"


def test_roles_replace_files_through_core() -> None:
    """A power failure after an apply must not leave an empty configuration file."""
    advice = "use ansible.module_utils.atomic_files.write_atomic, or add the file with the reason"

    assert _file_writers(ROLE_SOURCES) == set(ROLE_FILE_EXCEPTIONS), advice
