"""Restore a run from its snapshot, and report the differences from the original run.

`load` returns the command, folder, settings and environment of the run; `check` compares machine, packages and code with the new plan. A
snapshot contains no secrets: they are taken from the environment of the replay.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import primus_bootstrap
from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch import masking
from primus_bootstrap.launch.snapshot import restored_files, run_snapshot, snapshot_diff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.launch.run_plan import Plan
    from primus_bootstrap.launch.snapshot.snapshot_diff import Difference

# Variables of a session, of a scheduler's job, or of one run: a replay does not restore them.
_NOT_RESTORED = (
    *(
        "TERM",
        "COLORTERM",
        "LINES",
        "COLUMNS",
        "SHLVL",
        "_",
        "PWD",
        "OLDPWD",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "MAIL",
        "HOSTNAME",
        "HOST",
    ),
    *("DISPLAY", "TMPDIR", "LS_COLORS", "EDITOR", "PAGER", "PS1", "TMUX*", "STY", "SSH_*", "XDG_*", "DBUS_*", "SYSTEMD_*", "INVOCATION_ID"),
    *("JOURNAL_STREAM", "NOTIFY_SOCKET", "SLURM*", "PMI*", "OMPI_*", "*_VISIBLE_DEVICES", "RUN_DIR", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
    *("GROUP_RANK", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_*", "TORCH_ELASTIC_*", "PYTEST_*"),
    *("PRIMUS_NODE", "PRIMUS_PLAN", "PRIMUS_TASK", "PRIMUS_COMMAND", "PRIMUS_REPLAY", "PRIMUS_REPLAY_STRICT", "PRIMUS_EXIT_CODE"),
)
# Settings of one run: each replay has its own run folder, and a node keeps its number.
_SETTINGS_NOT_RESTORED = ("main.output", "main.debug", "direct.node_rank")


@dataclass(frozen=True)
class Replay:
    """The restored parts of a run."""

    command: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str | None] = field(default_factory=dict)  # the variables to set; None for a variable to remove
    settings: Mapping[str, Any] = field(default_factory=dict)  # values by name, which replace those of all layers
    notes: tuple[str, ...] = ()  # the differences from the original run


def load(folder: Path, current: Mapping[str, str] = os.environ) -> Replay:
    """Return the restored parts of a run.

    Args:
        folder: A run folder, or its `snapshot/`.
        current: The environment of the replay, the source of secrets.

    Raises:
        UsageError: There is no snapshot, or its command contains a masked secret.
        PlanError: A hook, a patch or a plug-in of the run can be restored neither from its path nor from the snapshot.
    """
    snapshot = run_snapshot.find(folder)
    data = run_snapshot.read(snapshot, run_snapshot.MAIN)
    recorded: Mapping[str, str] = run_snapshot.read(snapshot, run_snapshot.ENVIRONMENT)["variables"]
    settings, missing_in_settings = _settings(data["settings"], current)
    environment, missing = _environment(recorded, current)
    copies, notes = _changed_files(snapshot, data)
    notes.extend(restored_files.restore(folder).notes)
    absent = sorted({*missing, *missing_in_settings})
    if absent:
        notes.append(f"these secrets are not in the snapshot and not set: {', '.join(absent)}; set them if the run needs them")
    _check_command(data["command"])
    command = tuple(_with_copies(word, data["cwd"], copies) for word in data["command"])
    return Replay(command, data["cwd"], environment, settings, tuple(notes))


def check(folder: Path, plan: Plan, *, strict: bool) -> tuple[str, ...]:
    """Compare this node with the snapshot; return one line per difference.

    Raises:
        PlanError: `strict` is set and something differs.
    """
    found = differences(folder, plan)
    lines = tuple(f"replay: {item.text()}" for item in found) or ("replay: machine, packages, code and settings are unchanged",)
    if strict and found:
        listed = "\n".join(f"  {item.text()}" for item in found)
        fix = "undo the differences, or remove --strict"
        raise PlanError(f"the replay of {folder} differs from the original run ({len(found)} differences):\n{listed}", fix=fix)
    return lines


def differences(folder: Path, plan: Plan) -> tuple[Difference, ...]:
    """Return the differences between a snapshot and a plan on this machine."""
    snapshot = run_snapshot.find(folder)
    recorded = run_snapshot.read(snapshot, run_snapshot.MAIN)
    name = run_snapshot.machine_name(plan.topology.node_rank)
    machine = run_snapshot.read(snapshot, name) if (snapshot / name).is_file() else {}
    current = {**plan.to_json(masked=True), "primus_cli": primus_bootstrap.__version__, **run_snapshot.code_part(plan)}
    current = snapshot_diff.with_original_names(current, snapshot, recorded)
    environments = [
        {name: value for name, value in variables.items() if not _is_not_restored(name)}
        for variables in (
            run_snapshot.read(snapshot, run_snapshot.ENVIRONMENT)["variables"],
            run_snapshot.environment_part(plan)["variables"],
        )
    ]
    return (
        *snapshot_diff.compare_runs(recorded, current),
        *snapshot_diff.compare_environments(*environments),
        *snapshot_diff.compare_machines(machine, run_snapshot.machine(plan)),
    )


def _settings(recorded: Mapping[str, Any], current: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings to restore, and the names of secret variables of direct.env that are not set."""
    settings = {path: item["value"] for path, item in recorded.items() if path not in _SETTINGS_NOT_RESTORED}
    settings["main.output"] = ""
    variables = dict(settings.get("direct.env") or {})
    secret = [name for name, value in variables.items() if value == masking.MASK]
    variables.update({name: current[name] for name in secret if name in current})
    missing = [name for name in secret if name not in current]
    settings["direct.env"] = {name: value for name, value in variables.items() if name not in missing}
    return settings, missing


def _environment(recorded: Mapping[str, str], current: Mapping[str, str]) -> tuple[dict[str, str | None], list[str]]:
    """Return the variables to set or remove (None), and the names of secrets that are not set."""
    changes: dict[str, str | None] = {name: None for name in current if name not in recorded and not _is_not_restored(name)}
    missing: list[str] = []
    for name, value in recorded.items():
        if _is_not_restored(name):
            continue
        if masking.MASK not in value:
            changes[name] = value
        elif name not in current:
            missing.append(name)
    return changes, missing


def _is_not_restored(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _NOT_RESTORED)


def _changed_files(snapshot: Path, data: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the copies of files in the program's arguments that have changed, by original path, and a note for each changed file."""
    named = {
        str((Path(data["cwd"]) / text).absolute()) for word in data["program_arguments"] for text in (word, word.partition("=")[2]) if text
    }
    copies: dict[str, str] = {}
    notes: list[str] = []
    for item in data["files"]:
        if item["path"] not in named:
            continue
        source = restored_files.source(snapshot, item)
        if source.note:
            notes.append(source.note)
        if source.path and str(source.path) != item["path"]:
            copies[item["path"]] = str(source.path)
    return copies, notes


def _with_copies(word: str, cwd: str, copies: Mapping[str, str]) -> str:
    """Return a word with the path of a file, alone or after `=`, replaced by the path of its copy."""
    start, equals, value = word.partition("=")
    for text, before in ((word, ""), (value, f"{start}{equals}")):
        copy = copies.get(str((Path(cwd) / text).absolute())) if text else None
        if copy:
            return before + copy
    return word


def _check_command(words: Sequence[str]) -> None:
    """Raise if a command contains a masked secret, except in `--env NAME=…`, which the settings restore."""
    for index, word in enumerate(words):
        is_variable = word.startswith("--env=") or (index and words[index - 1] == "--env")
        if masking.MASK in word and not is_variable:
            fix = "run the command by hand with the secret, and pass the secret as a variable in the future: --env NAME"
            raise UsageError(f"the command contains a secret, which the snapshot has only masked: {word}", fix=fix)
