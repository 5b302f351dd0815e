"""The snapshot of a run, in the folder `snapshot/` of its run folder: what is needed to run it again, and to see what has changed since.

    snapshot.json       command, program, settings with their origins, steps, files, git state
    environment.json    what the program got; secrets are ***
    machine-00000.json  one a node: operating system, GPUs, drivers, ports, packages
    files/, git-00.patch

Node 0 writes what all nodes share. No secret is in any of these files.
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

    from primus_bootstrap.launch.runtimes.run_plan import Plan
    from primus_bootstrap.launch.snapshot.code_state import Kept, Repository

SCHEMA = "primus.snapshot/1"
FOLDER, MAIN, ENVIRONMENT, FILES = "snapshot", "snapshot.json", "environment.json", "files"
_EARLIER = "earlier"


def take(plan: Plan, run_dir: Path) -> Path:
    """Write the snapshot of a run that is about to start; return its folder.

    What an earlier use of the run folder wrote there and is different now goes to `earlier/`.
    """
    folder = run_dir / FOLDER
    secrets = _secrets(plan)
    written: dict[str, Any] = {machine_name(plan.topology.node_rank): machine(plan)}
    texts: dict[str, str] = {}
    if plan.topology.node_rank == 0:
        kept, repositories = _kept(plan, secrets), _repositories(plan, secrets)
        written[MAIN] = main_part(plan, kept, repositories, run_dir)
        written[ENVIRONMENT] = environment_part(plan)
        texts = {f"{FILES}/{item.name}": item.copy for item in kept if item.copy}
        texts.update({_patch_name(index): item.patch for index, item in enumerate(repositories) if item.patch})
    texts.update({name: json.dumps(_without_secrets(data, secrets), indent=1) + "\n" for name, data in written.items()})
    _set_aside(folder, texts)
    files.write_files(folder, dict(texts), check=False)
    return folder


def machine_name(node_rank: int) -> str:
    """Return the name of the file with the machine of a node."""
    return f"machine-{node_rank:05d}.json"


def machine(plan: Plan) -> dict[str, Any]:
    """Return what this machine is."""
    environment = plan.full_environment()
    facts = machine_state.describe(sysfs.Host(Path("/")), plan.python, environment)
    return {"schema": SCHEMA, "node": environment.get("PRIMUS_NODE", ""), "node_rank": plan.topology.node_rank, **facts}


def main_part(plan: Plan, kept: Sequence[Kept], repositories: Sequence[Repository], run_dir: Path) -> dict[str, Any]:
    """Return the run itself: its plan, and the state of its code and files."""
    data = plan.to_json(masked=True)
    data.update(
        schema=SCHEMA,
        taken=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        primus_cli=primus_bootstrap.__version__,
        steps=_steps(run_dir, plan.topology.node_rank),
        files=[item.to_json() for item in kept],
        git=[item.to_json(_patch_name(index)) for index, item in enumerate(repositories)],
        code=[code_state.folder_digest(folder) for folder in _program_folders(plan)],
    )
    return data


def code_part(plan: Plan) -> dict[str, Any]:
    """Return the state of the code and files alone, to be compared with that of a snapshot."""
    secrets = _secrets(plan)
    return {
        "files": [item.to_json() for item in _kept(plan, secrets)],
        "git": [item.to_json(_patch_name(index)) for index, item in enumerate(_repositories(plan, secrets))],
        "code": [code_state.folder_digest(folder) for folder in _program_folders(plan)],
    }


def environment_part(plan: Plan) -> dict[str, Any]:
    """Return what the program gets, masked, and where each variable that is set for it comes from."""
    set_here = {item.name: item.origin for item in plan.environment}
    return {"schema": SCHEMA, "variables": dict(sorted(masking.mask_environment(plan.full_environment()).items())), "set": set_here}


def find(folder: Path) -> Path:
    """Return the snapshot's folder for a run folder or for itself.

    Raises:
        UsageError: There is no snapshot.
    """
    try:
        for candidate in (folder, folder / FOLDER):
            if (candidate / MAIN).is_file():
                return candidate
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror}", fix=f"give a run folder that has {FOLDER}/{MAIN}") from error
    raise UsageError(f"{folder} has no snapshot", fix=f"give a run folder that has {FOLDER}/{MAIN}")


def read(folder: Path, name: str) -> dict[str, Any]:
    """Return one file of a snapshot.

    Raises:
        UsageError: It is not there, or is no snapshot of this version.
    """
    path = folder / name
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", fix="give the folder of a run whose snapshot is whole") from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", fix="give the folder of a run whose snapshot is whole") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UsageError(f"{path} is no snapshot of the form {SCHEMA}", fix="use the primus-cli that wrote it")
    return data


def _secrets(plan: Plan) -> tuple[str, ...]:
    """Return the values that must be in no file; of one with several lines, each line."""
    return tuple(part for value in plan.secrets() for part in (value, *value.splitlines()))


def _kept(plan: Plan, secrets: Sequence[str]) -> tuple[Kept, ...]:
    steps = [step.path for step in (*plan.hooks, *plan.patches)]
    return code_state.keep_files((*plan.program[1:], *plan.program_arguments, *steps), Path(plan.cwd), secrets)


def _repositories(plan: Plan, secrets: Sequence[str]) -> tuple[Repository, ...]:
    folders = [Path(plan.cwd), *_program_folders(plan), Path(primus_bootstrap.__file__).parent]
    return code_state.repositories((folder for folder in folders if folder.is_dir()), secrets)


def _program_folders(plan: Plan) -> list[Path]:
    """Return the folder with the code of the program: its script's, or all of `workloads/` for a program from there."""
    scripts = [Path(plan.cwd) / word for word in plan.program if word.endswith((".py", ".sh"))]
    found = [script for script in scripts[:1] if script.is_file()]
    return [next((folder for folder in script.parents if folder.name == "workloads"), script.parent) for script in found]


def _patch_name(index: int) -> str:
    return f"git-{index:02d}.patch"


def _steps(run_dir: Path, node_rank: int) -> list[Any]:
    """Return what hooks and patches came to before the program."""
    found: list[Any] = []
    with suppress(OSError, ValueError):
        text = (run_dir / "logs" / f"steps-{node_rank}.jsonl").read_text("utf-8", "replace")
        found.extend(json.loads(line) for line in text.splitlines())
    return found


def _without_secrets(data: Any, secrets: Sequence[str]) -> Any:
    """Return plain data with every text of it masked."""
    if isinstance(data, str):
        return masking.mask_text(data, secrets)
    if isinstance(data, list):
        return [_without_secrets(item, secrets) for item in data]
    if isinstance(data, dict):
        return {masking.mask_text(str(name), secrets): _without_secrets(value, secrets) for name, value in data.items()}
    return data


def _set_aside(folder: Path, texts: Mapping[str, str]) -> None:
    """Move what is there and will be different into `earlier/`, numbered."""
    for name, text in texts.items():
        path = folder / name
        if path.is_file() and path.read_text("utf-8", "replace") != text:
            target = folder / _EARLIER
            target.mkdir(exist_ok=True)
            number = 1 + sum(1 for _ in target.glob(f"*-{path.name}"))
            path.rename(target / f"{number:03d}-{path.name}")
