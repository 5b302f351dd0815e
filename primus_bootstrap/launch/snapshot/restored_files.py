"""Restore the hooks, patches and plug-ins of a run from its snapshot: the original file if it is unchanged, else the copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.plugins.plugin_discovery import PluginFile
from primus_bootstrap.launch.run_plan import PlannedStep
from primus_bootstrap.launch.snapshot import code_state, run_snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class RestoredFiles:
    """The hooks and patches of a run in their order, the files of its plug-in, and a note for each copy that is used."""

    hooks: tuple[PlannedStep, ...] = ()
    patches: tuple[PlannedStep, ...] = ()
    plugins: tuple[PluginFile, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Source:
    """Where a file of the snapshot is now. `path` is None if it has changed and the snapshot has no complete copy."""

    path: Path | None
    note: str


def restore(folder: Path) -> RestoredFiles:
    """Return the hooks, patches and plug-ins that a run had, and no others.

    Args:
        folder: A run folder, or its `snapshot/`.

    Raises:
        UsageError: There is no snapshot.
        PlanError: A file has changed, and the snapshot has no complete copy of it; all of them are named.
    """
    snapshot = run_snapshot.find(folder)
    data = run_snapshot.read(snapshot, run_snapshot.MAIN)
    files = {item["path"]: item for item in data["files"]}
    plugins = [item["path"] for item in data.get("plugins", ())]
    paths = [*(step["path"] for step in (*data["hooks"], *data["patches"])), *plugins]
    found = {path: _source(snapshot, path, files.get(path)) for path in paths}
    missing = [item.note for item in found.values() if item.path is None]
    if missing:
        what = "\n  ".join((f"the replay of {folder} lacks hooks, patches or plug-ins of the original run:", *missing))
        raise PlanError(what, fix="restore these files, or start the run by hand")
    hooks, patches = (
        tuple(PlannedStep(step["phase"], str(found[step["path"]].path), step["origin"]) for step in data[kind])
        for kind in ("hooks", "patches")
    )
    notes = tuple(item.note for item in found.values() if item.note)
    return RestoredFiles(hooks, patches, _plugins(snapshot, data, found), notes)


def source(snapshot: Path, item: Mapping[str, Any]) -> _Source:
    """Return where a file of a snapshot is now: at its path, or in the snapshot, with a note."""
    path = Path(item["path"])
    if path.is_file() and code_state.file_sha256(path) == item["sha256"]:
        return _Source(path, "")
    state = "has changed" if path.is_file() else "no longer exists"
    copy = snapshot / run_snapshot.FILES / item["copy"]
    if item["copy"] and not item["masked"] and copy.is_file():
        return _Source(copy.absolute(), f"{path} {state}; the copy in the snapshot is used")
    return _Source(None, f"{path} {state}, and the snapshot has no complete copy of it")


def _source(snapshot: Path, path: str, item: Mapping[str, Any] | None) -> _Source:
    return source(snapshot, item) if item else _Source(None, f"{path} is not in the snapshot")


def _plugins(snapshot: Path, data: Mapping[str, Any], found: Mapping[str, _Source]) -> tuple[PluginFile, ...]:
    """Return the files of the plug-in. If one of them has changed, all copies are used, because the files import each other."""
    plugins = data.get("plugins", ())
    if all(found[item["path"]].path == Path(item["path"]) for item in plugins):
        return tuple(PluginFile(Path(item["path"]), Path(item["path"][: -len(item["name"]) - 1])) for item in plugins)
    copies = (snapshot / run_snapshot.FILES / run_snapshot.PLUGINS).absolute()
    return tuple(PluginFile(copies / item["name"], copies) for item in plugins)
