"""The resource limits of a container. podman cannot raise a limit above that of its caller, so those limits are lowered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

# A bit of CapEff; it permits raising limits only in the initial user namespace: capabilities(7), user_namespaces(7).
_SYS_RESOURCE = 1 << 24
_FIRST_NAMESPACE = ["0", "0", "4294967295"]
# Names in /proc/self/limits.
_NAMES = {"memlock": "Max locked memory", "stack": "Max stack size", "nofile": "Max open files", "nproc": "Max processes"}
# podman's defaults: https://docs.podman.io/en/latest/markdown/podman-run.1.html#ulimit-option
_PODMAN_DEFAULTS = {"nofile": 1048576, "nproc": 1048576}
_UNLIMITED = -1


def words(engine: str, setting: Sequence[str], built_in: Sequence[str], root: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the engine's options for the limits, and a note for each lowered limit.

    A limit that the user set is never lowered: the engine reports if it is not possible. Apptainer sets no limits.
    """
    if engine == "apptainer":
        return (), ()
    limits = {value.partition("=")[0]: value for value in setting}  # the last value of a name counts
    lowered = dict(_lowered(limits, built_in, root)) if engine == "podman" else {}
    notes = tuple(f"limit {name}={value} in the container: this process cannot raise it further" for name, value in lowered.items())
    given = {**limits, **{name: f"{name}={value}:{value}" for name, value in lowered.items()}}
    return tuple(f"--ulimit={value}" for value in given.values()), notes


def _lowered(limits: Mapping[str, str], built_in: Sequence[str], root: Path) -> Iterator[tuple[str, int]]:
    """Yield each default limit above the hard limit of this process, with that hard limit."""
    if _may_raise(root):
        return
    defaults = {name: str(value) for name, value in _PODMAN_DEFAULTS.items() if name not in limits}
    defaults.update({name: value for name, value in limits.items() if value in built_in})
    for name, hard_limit in _hard_limits(root).items():
        if name in defaults:
            value = int(defaults[name].rpartition("=")[2])
            if hard_limit != _UNLIMITED and (value == _UNLIMITED or value > hard_limit):
                yield name, hard_limit


def _may_raise(root: Path) -> bool:
    """Return whether this process may raise its limits; True if unknown, so that no limit is changed."""
    try:
        namespace = (root / "proc/self/uid_map").read_text("utf-8").split()
        status = dict(line.split(":", 1) for line in (root / "proc/self/status").read_text("utf-8").splitlines() if ":" in line)
        return namespace == _FIRST_NAMESPACE and bool(int(status["CapEff"], 16) & _SYS_RESOURCE)
    except (OSError, KeyError, ValueError):
        return True


def _hard_limits(root: Path) -> dict[str, int]:
    """Return the hard limits of this process, which podman cannot exceed; -1 = unlimited."""
    try:
        lines = (root / "proc/self/limits").read_text("utf-8").splitlines()
        # podman limits nproc to pid_max (observed with 4.3).
        pid_max = int((root / "proc/sys/kernel/pid_max").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    hard = {name: line[len(title) :].split()[1] for name, title in _NAMES.items() for line in lines if line.startswith(title)}
    limits = {name: _UNLIMITED if value == "unlimited" else int(value) for name, value in hard.items()}
    if "nproc" in limits:
        limits["nproc"] = pid_max if limits["nproc"] == _UNLIMITED else min(limits["nproc"], pid_max)
    return limits
