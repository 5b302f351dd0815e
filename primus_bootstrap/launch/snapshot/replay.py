"""Running a snapshot again: what is restored, what cannot be, and what is different here.

`load` gives the command, folder, settings and environment of the run; `check` compares this machine, its packages and the code, once the
new plan is made. Secrets are in no snapshot: they are taken from the environment of the replay.
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
from primus_bootstrap.launch.snapshot import code_state, run_snapshot, snapshot_diff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.launch.runtimes.run_plan import Plan
    from primus_bootstrap.launch.snapshot.snapshot_diff import Difference

# Variables that are of a session, of a scheduler's job, or set anew for each run: they stay as they are at the replay.
_OF_THE_MOMENT = (
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
# Settings that are of one start: each replay gets a run folder of its own, and a node keeps its number.
_OF_ONE_START = ("main.output", "main.debug", "direct.node_rank")


@dataclass(frozen=True)
class Replay:
    """What a snapshot restores.

    `environment` holds what to set, and None for what to take away. `settings` are dotted paths with values, above what the layers give.
    `notes` say what is not as it was.
    """

    command: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str | None] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def load(folder: Path, here: Mapping[str, str] = os.environ) -> Replay:
    """Return what the snapshot in a run folder restores.

    Args:
        folder: A run folder, or its `snapshot/`.
        here: The environment of the replay, where secrets come from.

    Raises:
        UsageError: There is no snapshot, or its command holds a secret that only its user knows.
    """
    place = run_snapshot.find(folder)
    data = run_snapshot.read(place, run_snapshot.MAIN)
    then: Mapping[str, str] = run_snapshot.read(place, run_snapshot.ENVIRONMENT)["variables"]
    settings, left_out = _settings(data["settings"], here)
    environment, missing = _environment(then, here)
    copies, notes = _changed_files(place, data)
    absent = sorted({*missing, *left_out})
    if absent:
        notes.append(f"not set here, and kept in no snapshot: {', '.join(absent)}; set them where the run needs them")
    _refuse_masked(data["command"])
    command = tuple(_with_copies(word, data["cwd"], copies) for word in data["command"])
    return Replay(command, data["cwd"], environment, settings, tuple(notes))


def check(folder: Path, plan: Plan, *, strict: bool) -> tuple[str, ...]:
    """Compare what is here with the snapshot, for this node; return one line a difference.

    Raises:
        PlanError: With `strict`, where anything differs.
    """
    found = differences(folder, plan)
    lines = tuple(f"replay: {item.text()}" for item in found) or ("replay: machine, packages, code and settings are as they were",)
    if strict and found:
        listed = "\n".join(f"  {item.text()}" for item in found)
        fix = "mend the differences, or leave --strict out"
        raise PlanError(f"the replay of {folder} would not run as it did, {len(found)} differences:\n{listed}", fix=fix)
    return lines


def differences(folder: Path, plan: Plan) -> tuple[Difference, ...]:
    """Return what differs between a snapshot and a plan on this machine."""
    place = run_snapshot.find(folder)
    then = run_snapshot.read(place, run_snapshot.MAIN)
    name = run_snapshot.machine_name(plan.topology.node_rank)
    machine = run_snapshot.read(place, name) if (place / name).is_file() else {}
    now = {**plan.to_json(masked=True), "primus_cli": primus_bootstrap.__version__, **run_snapshot.code_part(plan)}
    now = snapshot_diff.under_old_names(now, place, then)
    was = run_snapshot.read(place, run_snapshot.ENVIRONMENT)["variables"]
    sides = [
        {name: value for name, value in side.items() if not _of_the_moment(name)}
        for side in (was, run_snapshot.environment_part(plan)["variables"])
    ]
    return (
        *snapshot_diff.compare_runs(then, now),
        *snapshot_diff.compare_environments(*sides),
        *snapshot_diff.compare_machines(machine, run_snapshot.machine(plan)),
    )


def _settings(then: Mapping[str, Any], here: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings to put above all layers, and the names of variables among them whose values are secrets that are not here."""
    found = {path: item["value"] for path, item in then.items() if path not in _OF_ONE_START}
    found["main.output"] = ""
    stated = dict(found.get("direct.env") or {})
    secret = [name for name, value in stated.items() if value == masking.MASK]
    stated.update({name: here[name] for name in secret if name in here})
    missing = [name for name in secret if name not in here]
    found["direct.env"] = {name: value for name, value in stated.items() if name not in missing}
    return found, missing


def _environment(then: Mapping[str, str], here: Mapping[str, str]) -> tuple[dict[str, str | None], list[str]]:
    """Return what to set and what to take away, and the names of secrets that are not here."""
    wanted: dict[str, str | None] = {name: None for name in here if name not in then and not _of_the_moment(name)}
    missing: list[str] = []
    for name, value in then.items():
        if _of_the_moment(name):
            continue
        if masking.MASK not in value:
            wanted[name] = value
        elif name not in here:
            missing.append(name)
    return wanted, missing


def _of_the_moment(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _OF_THE_MOMENT)


def _changed_files(place: Path, data: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the copies that stand in for files of the program's arguments which are not as they were, by path, and what to say of it."""
    named = {
        str((Path(data["cwd"]) / text).absolute()) for word in data["program_arguments"] for text in (word, word.partition("=")[2]) if text
    }
    copies: dict[str, str] = {}
    notes: list[str] = []
    for item in data["files"]:
        path = Path(item["path"])
        if item["path"] not in named or (path.is_file() and code_state.file_sha256(path) == item["sha256"]):
            continue
        state = "has changed since" if path.is_file() else "is not there any more"
        copy = place / run_snapshot.FILES / item["copy"]
        if item["copy"] and not item["masked"] and copy.is_file():
            copies[item["path"]] = str(copy.absolute())
            notes.append(f"{path} {state}: the snapshot's copy is used")
        else:
            notes.append(f"{path} {state}, and the snapshot has no whole copy of it")
    return copies, notes


def _with_copies(word: str, cwd: str, copies: Mapping[str, str]) -> str:
    """Return a word that names the copy of a file instead of the file, by itself or behind `=`."""
    start, equals, value = word.partition("=")
    for text, before in ((word, ""), (value, f"{start}{equals}")):
        copy = copies.get(str((Path(cwd) / text).absolute())) if text else None
        if copy:
            return before + copy
    return word


def _refuse_masked(words: Sequence[str]) -> None:
    """Refuse a command with a secret in it, but for `--env NAME=…`, which the settings restore."""
    for index, word in enumerate(words):
        is_variable = word.startswith("--env=") or (index and words[index - 1] == "--env")
        if masking.MASK in word and not is_variable:
            fix = "run the command by hand with the secret; next time pass it as a variable: --env NAME"
            raise UsageError(f"the command holds a secret that no snapshot keeps: {word}", fix=fix)
