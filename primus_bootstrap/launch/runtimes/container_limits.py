"""Which limits a container is given: podman, which we start ourselves, can give none that we may not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

# Capabilities are bits of CapEff, and only in the first user namespace do they count for limits: capabilities(7), user_namespaces(7).
_SYS_RESOURCE = 1 << 24
_FIRST_NAMESPACE = ["0", "0", "4294967295"]
# As /proc/self/limits calls them.
_NAMES = {"memlock": "Max locked memory", "stack": "Max stack size", "nofile": "Max open files", "nproc": "Max processes"}
# What podman asks for by itself: https://docs.podman.io/en/latest/markdown/podman-run.1.html#ulimit-option
_OF_PODMAN = {"nofile": 1048576, "nproc": 1048576}
_UNLIMITED = -1


def words(engine: str, wanted: Sequence[str], built_in: Sequence[str], root: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the engine's words for the limits inside, and a note for each that is lower than it would be.

    What somebody asked for stays as it is: where it cannot be had, the engine says so. Apptainer gives none of its own.
    """
    if engine == "apptainer":
        return (), ()
    limits = {value.partition("=")[0]: value for value in wanted}  # the last one of a name holds
    lowered = dict(_lowered(limits, built_in, root)) if engine == "podman" else {}
    notes = tuple(f"{name}={lowered[name]} inside: this process may have no more of it, and not raise it" for name in lowered)
    given = {**limits, **{name: f"{name}={value}:{value}" for name, value in lowered.items()}}
    return tuple(f"--ulimit={value}" for value in given.values()), notes


def _lowered(limits: Mapping[str, str], built_in: Sequence[str], root: Path) -> Iterator[tuple[str, int]]:
    """Yield each limit that nobody asked for and that is above what this process may have; none where that cannot be told."""
    if _may_raise(root):
        return
    ours = {name: value for name, value in limits.items() if value in built_in}
    asked = {**({name: str(value) for name, value in _OF_PODMAN.items() if name not in limits}), **ours}
    for name, highest in _hard_limits(root).items():
        if name in asked:
            value = int(asked[name].rpartition("=")[2])
            if highest != _UNLIMITED and (value == _UNLIMITED or value > highest):
                yield name, highest


def _may_raise(root: Path) -> bool:
    """Tell whether this process may raise its limits; True where it is not known, so that nothing is changed."""
    try:
        namespace = (root / "proc/self/uid_map").read_text("utf-8").split()
        status = dict(line.split(":", 1) for line in (root / "proc/self/status").read_text("utf-8").splitlines() if ":" in line)
        return namespace == _FIRST_NAMESPACE and bool(int(status["CapEff"], 16) & _SYS_RESOURCE)
    except (OSError, KeyError, ValueError):
        return True


def _hard_limits(root: Path) -> dict[str, int]:
    """Return the highest value of each limit that this process, and so podman, may have; -1 = unlimited."""
    try:
        lines = (root / "proc/self/limits").read_text("utf-8").splitlines()
        # podman gives up what it has beyond the highest number of a process (seen with 4.3).
        processes = int((root / "proc/sys/kernel/pid_max").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    hard = {name: line[len(title) :].split()[1] for name, title in _NAMES.items() for line in lines if line.startswith(title)}
    found = {name: _UNLIMITED if value == "unlimited" else int(value) for name, value in hard.items()}
    if "nproc" in found:
        found["nproc"] = processes if found["nproc"] == _UNLIMITED else min(found["nproc"], processes)
    return found
