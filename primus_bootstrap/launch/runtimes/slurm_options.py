"""Combine Slurm's own options from the settings and the command line, and reject options that would break a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Common short options with their long names: https://slurm.schedmd.com/srun.html
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
# Variables of an allocation that srun reads as those options (https://slurm.schedmd.com/srun.html, input environment variables). If they
# contradict --ntasks-per-node=1, srun prints a warning and follows the variables.
COUNT_VARIABLES = frozenset(
    {"SLURM_NTASKS", "SLURM_NPROCS"} | {f"SLURM_NTASKS_PER_{unit}" for unit in ("NODE", "GPU", "CORE", "SOCKET", "TRES")}
)
_RUNS_PROGRAM = "Slurm would run it as a program on the nodes"
_ONE_LAUNCHER = "primus-cli starts one launcher on each node"
_ARRAY, _NO_ARRAY = (
    "the tasks of an array would overwrite each other's files in one run folder",
    "submit one job per run, each with its own --output",
)


def option_words(settings: Mapping[str, object], typed: Sequence[str]) -> tuple[str, ...]:
    """Return the options of the settings that the user did not type, then the typed options."""
    names = {_long(word) for word in typed if word.startswith("-")}
    words: list[str] = []
    for name, value in settings.items():
        option = _long(f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}")
        if option in _COUNTS:
            fix = "remove it; the setting for ranks per node is direct: {nproc: K}"
            raise UsageError(f"slurm.options: {name}: {_ONE_LAUNCHER}", fix=fix)
        if option == "--array":
            raise UsageError(f"slurm.options: {name}: {_ARRAY}", fix=_NO_ARRAY)
        if option not in names and value is not None and value is not False:
            words.append(option if value is True else f"{option}={value}")
    return (*words, *typed)


def check_typed(typed: Sequence[str]) -> None:
    """Reject options that change the number of launchers per node, job arrays, and words that srun would run as a program.

    Raises:
        UsageError: There is such an option or word.
    """
    _check_programs(typed)
    for word in typed:
        if word.startswith("-") and _long(word) == "--array":
            raise UsageError(f"slurm: {word}: {_ARRAY}", fix=_NO_ARRAY)
        if word.startswith("-") and _long(word) in _COUNTS:
            fix = "remove it; for K ranks per node write … -- direct --nproc K -- …"
            raise UsageError(f"slurm: {word}: {_ONE_LAUNCHER}", fix=fix)


def _check_programs(typed: Sequence[str]) -> None:
    for number, word in enumerate(typed):
        before = typed[number - 1] if number else ""
        if word.startswith("-") or word == ":" or _may_take_value(before):  # a colon separates the parts of a heterogeneous job
            continue
        near = "" if before else nearest(word, ("srun", "sbatch"))
        fix = f"did you mean {near}?" if near else "write the task after --: primus-cli slurm srun -N 2 -- train pretrain"
        raise UsageError(f"slurm: {word} is not an option; {_RUNS_PROGRAM}", fix=fix)


def _may_take_value(word: str) -> bool:
    """Return whether the next word may be the value of an option; `--nodes=2` and `-N2` have theirs."""
    return (word.startswith("--") and "=" not in word) or (word.startswith("-") and len(word) == 2)


def check_export(options: Sequence[str], names: Sequence[str]) -> None:
    """Check that --export passes the variables of --env to the nodes: Slurm forwards them from this environment.

    Raises:
        UsageError: A variable would be lost.
    """
    for index, word in enumerate(options):
        if _long(word) != "--export":
            continue
        value = word.partition("=")[2] if "=" in word else "".join(options[index + 1 : index + 2])
        exported = {item.partition("=")[0] for item in value.split(",")}
        lost = sorted(set(names) - exported)
        if lost and "ALL" not in exported:
            raise UsageError(
                f"slurm: --export does not pass these variables of --env to the nodes: {', '.join(lost)}",
                fix=f"write --export=ALL, or add them to --export: {','.join(lost)}",
            )


def _long(word: str) -> str:
    """Return an option's long name without its value: `-N4`, `-N` and `--nodes=4` become --nodes."""
    if word.startswith("--"):
        return word.partition("=")[0]
    return _SHORT.get(word[:2], word[:2])
