"""Mark the checkpoints of a backend as the native trainer marks its own, so that the watcher finds the newest complete one.

A backend has its own names and formats. For each of its complete checkpoints, the folder gets `step-<step>/manifest.json`, which names the
backend's folder, and `latest`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from workloads.common.files import replace_text
from workloads.train.checkpoint_folder import complete_checkpoints, step_folder


def checkpoint_folder(run: Path, stated: str) -> Path:
    """Return the folder of the checkpoints: the stated one, or `checkpoints` in the run folder."""
    return Path(stated) if stated else run / "checkpoints"


def mark(folder: Path, step: int, *, backend: str, content: str, keep: int) -> None:
    """Mark a checkpoint as complete, and remove the oldest ones beyond `keep`.

    Args:
        folder: The folder of the checkpoints.
        step: Its step.
        backend: The backend that wrote it. The native trainer refuses to load it.
        content: The name of its folder below `folder`.
        keep: The number of complete checkpoints to keep.
    """
    path = step_folder(folder, step)
    path.mkdir(parents=True, exist_ok=True)
    facts = {"backend": backend, "folder": content}
    replace_text(path / "manifest.json", json.dumps({"format": backend, "step": step, "facts": facts, "files": {}}, indent=1) + "\n")
    replace_text(folder / "latest", f"{path.name}\n")
    for old in complete_checkpoints(folder)[keep:]:
        _remove(folder, old)


def _remove(folder: Path, marked: Path) -> None:
    """Remove the mark first, so that a partial removal leaves no checkpoint that looks complete."""
    name = content_of(marked)
    shutil.rmtree(marked, ignore_errors=True)
    if name and not marked.exists():
        shutil.rmtree(folder / name, ignore_errors=True)


def content_of(marked: Path) -> str:
    """Return the name of the backend's folder of a marked checkpoint; empty if it is not one."""
    try:
        name = str(json.loads((marked / "manifest.json").read_text("utf-8"))["facts"]["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return name if Path(name).name == name and name not in {"", ".", ".."} else ""


def newest_step(run: Path, stated: str) -> int:
    """Return the step of the newest complete checkpoint, 0 if there is none."""
    try:
        found = complete_checkpoints(checkpoint_folder(run, stated))
    except OSError:
        return 0
    return int(found[0].name.partition("-")[2]) if found else 0
