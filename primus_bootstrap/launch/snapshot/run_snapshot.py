"""Write and read the snapshot of a run, the folder `snapshot/` in its run folder. It has the data to repeat the run and to compare runs.

    snapshot.json       command, program, settings with their origins, steps, files, git state
    environment.json    the program's environment; secrets are ***
    machine-00000.json  one per node: operating system, GPUs, drivers, ports, packages
    files/, git-00.patch

Node 0 writes the files that all nodes share. No file contains a secret.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import primus_bootstrap
from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch import masking
from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.detect.render import files
from primus_bootstrap.launch.snapshot import code_state, machine_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.launch.run_plan import Plan
    from primus_bootstrap.launch.snapshot.code_state import FileCopy, Repository

SCHEMA = "primus.snapshot/1"
FOLDER, MAIN, ENVIRONMENT, FILES, PLUGINS = "snapshot", "snapshot.json", "environment.json", "files", "plugins"
_EARLIER = "earlier"
_GIVE_RUN_FOLDER = f"give a run folder that contains {FOLDER}/{MAIN}"
_INCOMPLETE = "give the folder of a run with a complete snapshot"


def take(plan: Plan, run_dir: Path) -> Path:
    """Write the snapshot of a run that is about to start; return its folder.

    Files of an earlier run in the same folder that differ are moved to `earlier/`.
    """
    folder = run_dir / FOLDER
    secrets = _secrets(plan)
    documents: dict[str, Any] = {machine_name(plan.topology.node_rank): machine(plan)}
    texts: dict[str, str] = {}
    if plan.topology.node_rank == 0:
        copies, repositories = _file_copies(plan, secrets), _repositories(plan, secrets)
        documents[MAIN] = main_part(plan, copies, repositories, run_dir)
        documents[ENVIRONMENT] = environment_part(plan)
        texts = {f"{FILES}/{item.name}": item.copy for item in copies if item.copy}
        texts.update({_patch_name(index): item.patch for index, item in enumerate(repositories) if item.patch})
    texts.update({name: json.dumps(_without_secrets(data, secrets), indent=1) + "\n" for name, data in documents.items()})
    _move_earlier(folder, texts)
    files.write_files(folder, dict(texts), check=False)
    return folder


def machine_name(node_rank: int) -> str:
    """Return the file name of a node's machine state."""
    return f"machine-{node_rank:05d}.json"


def machine(plan: Plan) -> dict[str, Any]:
    """Return the state of this machine."""
    environment = plan.full_environment()
    facts = machine_state.describe(sysfs.Host(Path("/")), plan.python, environment)
    return {"schema": SCHEMA, "node": environment.get("PRIMUS_NODE", ""), "node_rank": plan.topology.node_rank, **facts}


def main_part(plan: Plan, copies: Sequence[FileCopy], repositories: Sequence[Repository], run_dir: Path) -> dict[str, Any]:
    """Return the content of snapshot.json: the plan, and the state of code and files."""
    data = plan.to_json(masked=True)
    data.update(
        schema=SCHEMA,
        taken=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        primus_cli=primus_bootstrap.__version__,
        steps=_steps(run_dir, plan.topology.node_rank),
        files=[item.to_json() for item in copies],
        git=[item.to_json(_patch_name(index)) for index, item in enumerate(repositories)],
        code=[code_state.folder_digest(folder) for folder in _program_folders(plan)],
    )
    return data


def code_part(plan: Plan) -> dict[str, Any]:
    """Return the state of code and files, for a comparison with a snapshot."""
    secrets = _secrets(plan)
    return {
        "files": [item.to_json() for item in _file_copies(plan, secrets)],
        "git": [item.to_json(_patch_name(index)) for index, item in enumerate(_repositories(plan, secrets))],
        "code": [code_state.folder_digest(folder) for folder in _program_folders(plan)],
    }


def environment_part(plan: Plan) -> dict[str, Any]:
    """Return the content of environment.json: the program's environment, masked, and the origin of each variable that the plan sets."""
    origins = {item.name: item.origin for item in plan.environment}
    return {"schema": SCHEMA, "variables": dict(sorted(masking.mask_environment(plan.full_environment()).items())), "set": origins}


def find(folder: Path) -> Path:
    """Return the snapshot folder of a run folder; a snapshot folder is returned as it is.

    Raises:
        UsageError: There is no snapshot.
    """
    try:
        for candidate in (folder, folder / FOLDER):
            if (candidate / MAIN).is_file():
                return candidate
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}", fix=_GIVE_RUN_FOLDER) from error
    raise UsageError(f"{folder} has no snapshot", fix=_GIVE_RUN_FOLDER)


def read(folder: Path, name: str) -> dict[str, Any]:
    """Return one file of a snapshot.

    Raises:
        UsageError: It cannot be read, or has another schema.
    """
    path = folder / name
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", fix=_INCOMPLETE) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", fix=_INCOMPLETE) from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UsageError(f"{path} does not have the schema {SCHEMA}", fix="use the version of primus-cli that wrote it")
    return data


def _secrets(plan: Plan) -> tuple[str, ...]:
    """Return the secrets of the plan, and each line of those with several lines."""
    return tuple(part for value in plan.secrets() for part in (value, *value.splitlines()))


def _file_copies(plan: Plan, secrets: Sequence[str]) -> tuple[FileCopy, ...]:
    steps = [step.path for step in (*plan.hooks, *plan.patches)]
    plugins = {str(item.path) for item in plan.plugins}
    words = [word for word in (*plan.program[1:], *plan.program_arguments, *steps) if word not in plugins]
    return (
        *code_state.copy_files(words, Path(plan.cwd), secrets),
        # The modules of a plug-in import each other, so their copies keep their names.
        *(code_state.copy_file(item.path, f"{PLUGINS}/{item.name}", secrets) for item in plan.plugins),
    )


def _repositories(plan: Plan, secrets: Sequence[str]) -> tuple[Repository, ...]:
    folders = [Path(plan.cwd), *_program_folders(plan), Path(primus_bootstrap.__file__).parent]
    return code_state.repositories((folder for folder in folders if folder.is_dir()), secrets)


def _program_folders(plan: Plan) -> list[Path]:
    """Return the folder of the program's script, or `workloads/` if the script is below it."""
    scripts = [Path(plan.cwd) / word for word in plan.program if word.endswith((".py", ".sh"))]
    found = [script for script in scripts[:1] if script.is_file()]
    return [next((folder for folder in script.parents if folder.name == "workloads"), script.parent) for script in found]


def _patch_name(index: int) -> str:
    return f"git-{index:02d}.patch"


def _steps(run_dir: Path, node_rank: int) -> list[Any]:
    """Return the results of hooks and patches."""
    found: list[Any] = []
    with suppress(OSError, ValueError):
        text = (run_dir / "logs" / f"steps-{node_rank}.jsonl").read_text("utf-8", "replace")
        found.extend(json.loads(line) for line in text.splitlines())
    return found


def _without_secrets(data: Any, secrets: Sequence[str]) -> Any:
    """Return plain data with every text masked."""
    if isinstance(data, str):
        return masking.mask_text(data, secrets)
    if isinstance(data, list):
        return [_without_secrets(item, secrets) for item in data]
    if isinstance(data, dict):
        return {masking.mask_text(str(name), secrets): _without_secrets(value, secrets) for name, value in data.items()}
    return data


def _move_earlier(folder: Path, texts: Mapping[str, str]) -> None:
    """Move existing files whose content will change to `earlier/`, with a number."""
    for name, text in texts.items():
        path = folder / name
        if path.is_file() and path.read_text("utf-8", "replace") != text:
            target = folder / _EARLIER
            target.mkdir(exist_ok=True)
            number = 1 + sum(1 for _ in target.glob(f"*-{path.name}"))
            path.rename(target / f"{number:03d}-{path.name}")
