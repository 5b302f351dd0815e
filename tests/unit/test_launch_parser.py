"""primus_bootstrap.launch.settings.parser: parsing of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.settings.parser import CommandLine, parse, read_env_file

if TYPE_CHECKING:
    from pathlib import Path


def words(line: str, **environment: str) -> CommandLine:
    """Parse a command line."""
    return parse(line.split(), environment)


def flags(line: CommandLine) -> list[tuple[str, object]]:
    """Return the settings given as flags."""
    return [(item.path, item.value) for item in line.flags]


def test_a_direct_run() -> None:
    """Global options, options of the runtime, and the task's words after --."""
    line = words("--config x.yaml --dry-run direct --nproc 2 --single --grace=5 -- train pretrain --config y.yaml --nproc 3")

    assert (line.runtimes, line.words) == (("direct",), ("train", "pretrain", "--config", "y.yaml", "--nproc", "3"))
    assert flags(line) == [("direct.nproc", 2), ("direct.single", True), ("direct.grace", 5)]
    assert (line.config, set(line.given)) == ("x.yaml", {"--dry-run"})


def test_runtimes_nest() -> None:
    """The runtime slurm contains container, container contains direct; each takes its own options."""
    line = words("slurm srun -N 8 -p gpu --exclusive -- container --image i --volume /d -- direct --numa -- benchmark gemm")

    assert line.runtimes == ("slurm", "container", "direct")
    assert (line.slurm_launcher, line.slurm_words) == ("srun", ("-N", "8", "-p", "gpu", "--exclusive"))
    assert flags(line) == [("container.image", "i"), ("container.volume", ["/d"]), ("direct.numa", "on")]
    assert line.words == ("benchmark", "gemm")


def test_a_container_accepts_the_options_of_direct() -> None:
    """--log_file and --env apply to the run in the container, not to the engine."""
    line = words("container --image i --log_file l.txt --env A=b=c --no-numa -- train pretrain")

    assert flags(line) == [("container.image", "i"), ("direct.log_file", "l.txt"), ("direct.env", {"A": "b=c"}), ("direct.numa", "off")]


def test_slurm_accepts_dry_run_among_its_options() -> None:
    """--dry-run and --debug belong to primus-cli; all other options are passed to Slurm unchanged."""
    line = words("slurm --dry-run sbatch -N2 --debug --output=o.txt --test-only -- train pretrain")

    assert line.slurm_words == ("-N2", "--output=o.txt", "--test-only")
    assert set(line.given) == {"--dry-run"}
    assert flags(line) == [("main.debug", True)]


def test_a_named_variable_takes_precedence_over_a_file(tmp_path: Path) -> None:
    """NAME=VALUE wins, even if the file comes later; a name alone takes its value from the environment."""
    file = tmp_path / "my.env"
    file.write_text("# mine\nexport A='1 2'\n\nB=$HOME\n")
    line = words(f"direct --env A=9 --env {file} --env C -- x", C="here")

    assert [item.value for item in line.flags] == [{"A": "1 2", "B": "$HOME"}, {"A": "9"}, {"C": "here"}]


def test_empty_brackets_clear_a_list() -> None:
    """--ulimit=[] removes the built-in values."""
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
def test_errors_have_a_fix(line: str, message: str) -> None:
    """A misspelt option gets the most similar one; a missing -- gets an example."""
    with pytest.raises(UsageError) as raised:
        words(line)

    assert message in str(raised.value)


def test_another_line_in_a_file_of_variables_is_an_error(tmp_path: Path) -> None:
    """The file is data: a command in it is an error with its line, and is not executed."""
    file = tmp_path / "my.env"
    file.write_text("A=1\nrm -rf x\n")
    with pytest.raises(UsageError, match=r"my\.env:2: not a NAME=VALUE line"):
        read_env_file(file)


@pytest.mark.parametrize("line", ["slurm srun --help", "slurm --help", "slurm sbatch -N 2 -h"])
def test_the_help_of_slurm_needs_no_separator(line: str) -> None:
    """A user who wants help has no task yet."""
    assert ("--help" in words(line).given, words(line).runtime) == (True, "slurm")
