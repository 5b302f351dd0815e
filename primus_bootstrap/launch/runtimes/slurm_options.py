"""Slurm's own options: from the settings, and as the user typed them, which win. Nothing is checked but what would break a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# https://slurm.schedmd.com/srun.html: short options that people use, with the long one of the same meaning.
_SHORT = {
    "-A": "--account",
    "-a": "--array",
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
# Variables of an allocation that srun reads as those options (https://slurm.schedmd.com/srun.html, input environment variables). Where they
# contradict --ntasks-per-node=1, srun warns, ignores that, and starts as many launchers as they say.
COUNT_VARIABLES = frozenset(
    {"SLURM_NTASKS", "SLURM_NPROCS"} | {f"SLURM_NTASKS_PER_{what}" for what in ("NODE", "GPU", "CORE", "SOCKET", "TRES")}
)


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
        if option == "--array":
            raise UsageError(f"slurm.options: {name}: {_ARRAY}", fix=_NO_ARRAY)
        if option not in names and value is not None and value is not False:
            words.append(option if value is True else f"{option}={value}")
    return (*words, *typed)


_ARRAY, _NO_ARRAY = (
    "the tasks of an array would write over each other in one run folder",
    "submit one job a run, each with its own --output",
)


def refuse_what_breaks_a_run(typed: Sequence[str]) -> None:
    """Refuse options that would start several launchers on a node, or none on some, or several runs in one folder.

    Raises:
        UsageError: There is one.
    """
    for word in typed:
        if word.startswith("-") and _long(word) == "--array":
            raise UsageError(f"slurm: {word}: {_ARRAY}", fix=_NO_ARRAY)
        if word.startswith("-") and _long(word) in _COUNTS:
            raise UsageError(
                f"slurm: {word}: one launcher is started on each node", fix="leave it out; ranks a node: … -- direct --nproc K -- …"
            )


def refuse_lost_variables(options: Sequence[str], names: Sequence[str]) -> None:
    """Refuse an --export that keeps the variables of --env from the nodes: they go by name, through Slurm.

    Raises:
        UsageError: It does.
    """
    for index, word in enumerate(options):
        if _long(word) != "--export":
            continue
        value = word.partition("=")[2] if "=" in word else "".join(options[index + 1 : index + 2])
        exported = {item.partition("=")[0] for item in value.split(",")}
        lost = sorted(set(names) - exported)
        if lost and "ALL" not in exported:
            raise UsageError(
                f"slurm: --export keeps variables from the nodes that --env sets: {', '.join(lost)}",
                fix="write --export=ALL, or name them there as well",
            )


def _long(word: str) -> str:
    """Return an option's long name without its value: `-N4`, `-N` and `--nodes=4` are --nodes."""
    if word.startswith("--"):
        return word.partition("=")[0]
    return _SHORT.get(word[:2], word[:2])
