"""primus_bootstrap.launch.commandline.parser: the words of a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.commandline.parser import CommandLine, parse, read_env_file

if TYPE_CHECKING:
    from pathlib import Path


def words(line: str, **environment: str) -> CommandLine:
    """Parse the words of a line."""
    return parse(line.split(), environment)


def flags(line: CommandLine) -> list[tuple[str, object]]:
    """Return the settings of a line."""
    return [(item.path, item.value) for item in line.flags]


def test_a_direct_run() -> None:
    """Global options, the runtime's, and the task's words after --."""
    line = words("--config x.yaml --dry-run direct --nproc 2 --single --grace=5 -- train pretrain --config y.yaml --nproc 3")

    assert (line.runtimes, line.words) == (("direct",), ("train", "pretrain", "--config", "y.yaml", "--nproc", "3"))
    assert flags(line) == [("direct.nproc", 2), ("direct.single", True), ("direct.grace", 5)]
    assert (line.config, set(line.given)) == ("x.yaml", {"--dry-run"})


def test_runtimes_nest() -> None:
    """Slurm holds a container, and a container holds a direct run; each takes its own options."""
    line = words("slurm srun -N 8 -p gpu --exclusive -- container --image i --volume /d -- direct --numa -- benchmark gemm")

    assert line.runtimes == ("slurm", "container", "direct")
    assert (line.slurm_launcher, line.slurm_words) == ("srun", ("-N", "8", "-p", "gpu", "--exclusive"))
    assert flags(line) == [("container.image", "i"), ("container.volume", ["/d"]), ("direct.numa", "on")]
    assert line.words == ("benchmark", "gemm")


def test_a_container_takes_the_options_of_the_run_inside() -> None:
    """--log_file and --env belong to the run inside and never to the engine."""
    line = words("container --image i --log_file l.txt --env A=b=c --no-numa -- train pretrain")

    assert flags(line) == [("container.image", "i"), ("direct.log_file", "l.txt"), ("direct.env", {"A": "b=c"}), ("direct.numa", "off")]


def test_slurm_takes_dry_run_wherever_it_stands() -> None:
    """--dry-run and --debug are ours also among Slurm's options; everything else passes through as it is."""
    line = words("slurm --dry-run sbatch -N2 --debug --output=o.txt --test-only -- train pretrain")

    assert line.slurm_words == ("-N2", "--output=o.txt", "--test-only")
    assert set(line.given) == {"--dry-run"}
    assert flags(line) == [("main.debug", True)]


def test_a_file_of_variables_stands_below_named_ones(tmp_path: Path) -> None:
    """NAME=VALUE wins over a file, also where the file comes later; a name alone takes its value from here."""
    file = tmp_path / "my.env"
    file.write_text("# mine\nexport A='1 2'\n\nB=$HOME\n")
    line = words(f"direct --env A=9 --env {file} --env C -- x", C="here")

    assert [item.value for item in line.flags] == [{"A": "1 2", "B": "$HOME"}, {"A": "9"}, {"C": "here"}]


def test_a_list_is_cleared_by_empty_brackets() -> None:
    """--ulimit=[] takes the built-in values away."""
    assert flags(words("container --ulimit=[] --ulimit nofile=9 -- x")) == [("container.ulimit", []), ("container.ulimit", ["nofile=9"])]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("direct --nprok 2 -- x", "direct: --nprok: unknown option\n  fix: did you mean --nproc?"),
        ("container --shm-sice 2 -- x", "did you mean --shm-size? (to pass an option to the engine: --engine-arg=--OPTION=VALUE)"),
        ("--dryrun direct -- x", "did you mean --dry-run?"),
        ("direct train pretrain", "direct: 'train' is not an option\n  fix: write -- between"),
        ("slurm srun -N 2 train", "slurm: -- is missing"),
        ("direct --grace", "--grace needs a value"),
        ("direct --grace -- x", "--grace needs a value"),
        ("direct --single=maybe -- x", "expected true or false"),
        ("direct --env nowhere -- x", "not NAME=VALUE, no variable of this name is set, and no such file"),
        ("container -- slurm srun -- x", "slurm cannot follow container"),
        ("direct -- container -- x", "container cannot follow direct"),
    ],
)
def test_what_is_wrong_is_said_with_a_fix(line: str, message: str) -> None:
    """Misspelt options get the nearest one, a missing -- its place."""
    with pytest.raises(UsageError) as raised:
        words(line)

    assert message in str(raised.value)


def test_a_line_that_is_no_assignment_is_refused_and_nothing_is_executed(tmp_path: Path) -> None:
    """A file of variables is data: a command in it is an error with its line."""
    file = tmp_path / "my.env"
    file.write_text("A=1\nrm -rf x\n")
    with pytest.raises(UsageError, match=r"my\.env:2: not a NAME=VALUE line"):
        read_env_file(file)


@pytest.mark.parametrize("line", ["slurm srun --help", "slurm --help", "slurm sbatch -N 2 -h"])
def test_help_of_slurm_needs_no_dashes(line: str) -> None:
    """Somebody who asks for help has no task yet."""
    assert ("--help" in words(line).given, words(line).runtime) == (True, "slurm")
