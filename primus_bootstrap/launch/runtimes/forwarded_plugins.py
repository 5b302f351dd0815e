"""Copy the plug-in of a run to its run folder, where the primus-cli in a container or on another node finds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_if_changed
from primus_bootstrap.launch.runtimes.direct_plan import chosen_task, plugins_of

if TYPE_CHECKING:
    from primus_bootstrap.launch.runtimes.direct_plan import LaunchRequest

FOLDER = "plugins"


def setting(request: LaunchRequest, run_dir: str) -> dict[str, str]:
    """Return the setting direct.plugin of the inner primus-cli: the copies, or no plug-in if the task needs none."""
    task, _ = chosen_task(request)
    if task.source:
        return {"plugin": str(Path(run_dir) / FOLDER)}
    return {"plugin": "[]"} if request.settings["direct.plugin"] else {}


def write_plugins(request: LaunchRequest, run_dir: str) -> None:
    """Write the files of the plug-in to the run folder."""
    task, _ = chosen_task(request)
    for file in plugins_of(request, task):
        write_if_changed(Path(run_dir) / FOLDER / file.name, file.path.read_bytes(), mode=0o644)
