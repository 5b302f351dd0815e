"""Finding the hooks of a task: built in, in the project, in folders of the user; before, after, and on failure.

    hooks/NN_x.sh                       before every task
    hooks/train/NN_x.py                 before every task of the group train
    hooks/train/pretrain/NN_x.sh        before `train pretrain`
    hooks/train/pretrain/after/NN_x.sh  after it; on_failure/ likewise, and before/ is another place for those above

Sources run in this order: built-in, the project's ./hooks, each --hooks folder. In one source the general ones come first, and in one
folder the names decide.
"""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.runtimes.run_plan import PlannedStep
from primus_bootstrap.launch.runtimes.self_exec import archive, unpack_resource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BEFORE, AFTER, ON_FAILURE = "before", "after", "on_failure"
PHASES = (BEFORE, AFTER, ON_FAILURE)
_NAME = re.compile(r"\d+_.*\.(sh|py)")
_BUILT_IN = "primus_bootstrap/launch/data/hooks/"


def find_hooks(task_folder: str, project: Path, folders: Sequence[str], run_dir: Path) -> tuple[PlannedStep, ...]:
    """Return the hooks of every phase, in the order in which they run; nothing is written.

    Raises:
        UsageError: A folder that the user named is not there, or a hook of the project belongs to another account.
    """
    project_hooks = project / "hooks"
    for name in folders:
        if not Path(name).is_dir():
            raise UsageError(f"--hooks {name}: there is no such folder", fix="give a folder that holds NN_*.sh or <group>/<name>/NN_*.py")
    packed = archive()
    built_in: Any = zipfile.Path(str(packed), _BUILT_IN) if packed else Path(__file__).parents[1] / "data" / "hooks"
    sources = [
        ("built-in", built_in, run_dir / "hooks" if packed else built_in),
        # Named by the user, it is trusted, and runs where it was named.
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
        _refuse_foreign(path, project_hooks)
    return found


def _refuse_foreign(path: Path, hooks: Path) -> None:
    """Raise where another account owns a hook, or a folder between it and the project: that account could run its code as this one."""
    for place in (path, *(parent for parent in path.parents if parent == hooks or hooks in parent.parents)):
        for about in (place.lstat(), place.stat()):
            if about.st_uid not in (0, os.geteuid()):
                raise UsageError(
                    f"{place}: belongs to the account number {about.st_uid}; hooks of other accounts are not run",
                    fix=f"remove it, work in another folder, or name the folder if you trust it: --hooks {hooks}",
                )


def _in_folder(source: Any, level: Sequence[str], phase: str) -> Iterator[str]:
    """Return the files of a phase, relative to the folder of a level; the name decides the order."""
    folder = source
    for part in level:
        folder = folder / part
    places = [("", folder), (f"{phase}/", folder / phase)] if phase == BEFORE else [(f"{phase}/", folder / phase)]
    found = [
        (entry.name, f"{prefix}{entry.name}")
        for prefix, place in places
        if place.is_dir()
        for entry in place.iterdir()
        if entry.is_file() and _NAME.fullmatch(entry.name)
    ]
    yield from (relative for _, relative in sorted(found))


def unpack_built_in(run_dir: Path) -> None:
    """Put the built-in hooks into the run folder, where they are in a zipapp."""
    packed = archive()
    if packed is None:
        return
    with zipfile.ZipFile(packed) as content:
        for name in content.namelist():
            if name.startswith(_BUILT_IN) and _NAME.fullmatch(Path(name).name):
                unpack_resource(content.read(name), name[len(_BUILT_IN) :], run_dir / "hooks")
