"""Slurm's own options: from the settings, and as the user typed them, which win. Nothing is checked but what would break a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# https://slurm.schedmd.com/srun.html: short options that people use, with the long one of the same meaning.
_SHORT = {
    "-A": "--account",
    "-c": "--cpus-per-task",
    "-C": "--constraint",
    "-e": "--error",
    "-G": "--gpus",
    "-J": "--job-name",
    "-N": "--nodes",
    "-n": "--ntasks",
    "-o": "--output",
    "-p": "--partition",
    "-q": "--qos",
    "-t": "--time",
    "-w": "--nodelist",
    "-x": "--exclude",
}
_COUNTS = ("--ntasks", "--ntasks-per-node", "--ntasks-per-gpu", "--ntasks-per-core", "--ntasks-per-socket")


def option_words(settings: Mapping[str, object], typed: Sequence[str]) -> tuple[str, ...]:
    """Return the options of the settings that the user did not type, and then what was typed."""
    names = {_long(word) for word in typed if word.startswith("-")}
    words: list[str] = []
    for name, value in settings.items():
        option = _long(f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}")
        if option in _COUNTS:
            raise UsageError(
                f"slurm.options: {name}: one launcher is started on each node", fix="leave it out; ranks a node: direct: {nproc: ...}"
            )
        if option not in names and value is not None and value is not False:
            words.append(option if value is True else f"{option}={value}")
    return (*words, *typed)


def refuse_task_counts(typed: Sequence[str]) -> None:
    """Refuse options that would start several launchers on a node, or none on some.

    Raises:
        UsageError: There is one.
    """
    for word in typed:
        if word.startswith("-") and _long(word) in _COUNTS:
            raise UsageError(
                f"slurm: {word}: one launcher is started on each node", fix="leave it out; ranks a node: … -- direct --nproc K -- …"
            )


def _long(word: str) -> str:
    """Return an option's long name without its value: `-N4`, `-N` and `--nodes=4` are --nodes."""
    if word.startswith("--"):
        return word.partition("=")[0]
    return _SHORT.get(word[:2], word[:2])
