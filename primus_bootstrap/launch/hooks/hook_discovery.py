"""Find the hooks of a task: built-in hooks, hooks of the project (./hooks), and hooks in the --hooks folders.

    hooks/NN_x.sh                       before every task
    hooks/train/NN_x.py                 before every task of the group train
    hooks/train/pretrain/NN_x.sh        before `train pretrain`
    hooks/train/pretrain/before/NN_x.sh before `train pretrain`, too
    hooks/train/pretrain/after/NN_x.sh  after `train pretrain`; likewise on_failure/

Order: built-in, ./hooks, each --hooks folder. Within a source, upper folders come first; within a folder, files run by their numbers
(2_x before 10_x), then by name.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.launch.detect.nics import natural
from primus_bootstrap.launch.file_owner import check_owner
from primus_bootstrap.launch.run_plan import PlannedStep
from primus_bootstrap.launch.self_exec import archive, unpack_resource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

BEFORE, AFTER, ON_FAILURE = "before", "after", "on_failure"
PHASES = (BEFORE, AFTER, ON_FAILURE)
_NAME = re.compile(r"\d+_.*\.(sh|py)")
_SCRIPT = re.compile(r"[^_.].*\.(sh|py)")
_NUMBERED = re.compile(r"\d+_.*[^~]")  # an editor's copy ends with ~
_BUILT_IN = "primus_bootstrap/launch/data/hooks/"


def find_hooks(task_folder: str, project: Path, folders: Sequence[str], run_dir: Path) -> tuple[PlannedStep, ...]:
    """Return the hooks of every phase in the order in which they run. Writes nothing.

    Raises:
        UsageError: A --hooks folder does not exist, or a hook of the project belongs to another account.
    """
    project_hooks = project / "hooks"
    for name in folders:
        if not Path(name).is_dir():
            raise UsageError(f"--hooks {name}: folder not found", fix="give a folder that contains NN_*.sh or <group>/<name>/NN_*.py")
    packed = archive()
    built_in: Any = zipfile.Path(str(packed), _BUILT_IN) if packed else Path(__file__).parents[1] / "data" / "hooks"
    sources = [
        ("built-in", built_in, run_dir / "hooks" if packed else built_in),
        # A --hooks folder is trusted, also if it is ./hooks.
        *([] if project_hooks in (Path(name).absolute() for name in folders) else [("project", project_hooks, project_hooks)]),
        *(("--hooks", Path(name).absolute(), Path(name).absolute()) for name in folders),
    ]
    parts = task_folder.split("/")
    levels = [parts[:length] for length in range(len(parts) + 1)]
    found = tuple(
        PlannedStep(phase, str(target.joinpath(*level, relative)), origin)
        for phase in PHASES
        for origin, folder, target in sources
        for level in levels
        for relative in _in_folder(folder, level, phase)
    )
    for path in (Path(step.path) for step in found if step.origin == "project"):
        check_owner(path, project_hooks, "its hooks are not run", "--hooks")
    return found


def not_run(task_folder: str, task_folders: Iterable[str], project: Path, folders: Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each file in a task's folder, and each folder, that looks like a hook or a task but does not run.

    Args:
        task_folder: The folder of the task, such as train/pretrain.
        task_folders: Those of every task.
        project: The folder that contains hooks/.
        folders: The --hooks folders.
    """
    sources = dict.fromkeys([project / "hooks", *(Path(name).absolute() for name in folders)])
    names = {"/".join(name.split("/")[:length]) for name in task_folders for length in (1, 2)}
    notes: list[str] = []
    for source in sources:
        notes += [f"{entry} is not run: {why}" for entry in _entries(source / task_folder) if (why := _why_not_run(entry))]
        for group in ("", f"{task_folder.partition('/')[0]}/"):
            inside = {name[len(group) :] for name in names if name.startswith(group) and "/" not in name[len(group) :]}
            for entry in _entries(source / group):
                near = nearest(entry.name, inside) if entry.is_dir() and entry.name not in (*inside, *PHASES) else ""
                if near:
                    notes.append(f"the hooks in {entry} are not run: no task has this name; did you mean {group}{near}?")
    return tuple(notes)


def _why_not_run(entry: Path) -> str:
    """Return why a file that looks like a hook is none; empty for a hook and for other files."""
    if not entry.is_file() or _NAME.fullmatch(entry.name):
        return ""
    if _NUMBERED.fullmatch(entry.name):
        return "the name of a hook ends with .sh or .py"
    return f"the name of a hook starts with a number, as in 10_{entry.name}" if _SCRIPT.fullmatch(entry.name) else ""


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _in_folder(source: Any, level: Sequence[str], phase: str) -> Iterator[str]:
    """Yield the hooks of a phase as paths relative to the folder of a level, by number and name."""
    folder = source
    for part in level:
        folder = folder / part
    folders = [("", folder), (f"{phase}/", folder / phase)] if phase == BEFORE else [(f"{phase}/", folder / phase)]
    found = [
        (entry.name, f"{prefix}{entry.name}")
        for prefix, candidate in folders
        if candidate.is_dir()
        for entry in candidate.iterdir()
        if entry.is_file() and _NAME.fullmatch(entry.name)
    ]
    yield from (relative for _, relative in sorted(found, key=lambda item: (natural(item[0]), item)))


def unpack_built_in(run_dir: Path) -> None:
    """Copy the built-in hooks from the zipapp into the run folder; do nothing if primus-cli does not run from a zipapp."""
    packed = archive()
    if packed is None:
        return
    with zipfile.ZipFile(packed) as content:
        for name in content.namelist():
            if name.startswith(_BUILT_IN) and _NAME.fullmatch(Path(name).name):
                unpack_resource(content.read(name), name[len(_BUILT_IN) :], run_dir / "hooks")
