"""primus_bootstrap.launch.commandline.replay_option: --replay after a training task."""

from __future__ import annotations

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.commandline import replay_option
from primus_bootstrap.launch.settings.parser import CommandLine, parse


def moved(text: str) -> CommandLine:
    """Parse a command line and move the option."""
    return replay_option.moved_to_options(parse(text.split(), {}))


@pytest.mark.parametrize("option", ["--replay runs/a", "--replay=runs/a"])
def test_the_option_is_that_of_primus_cli(option: str) -> None:
    """As AMD Primus writes it, with every runtime, and with --strict."""
    line = moved(f"slurm srun -N 2 -- container --image i -- train pretrain --strict {option}")

    assert (line.replay, line.words, line.runtimes) == ("runs/a", ("train", "pretrain"), ("slurm", "container"))
    assert "--strict" in line.given


@pytest.mark.parametrize("text", ["direct -- train pretrain --config x", "direct -- say --replay x", "direct --script p.py -- --replay x"])
def test_other_command_lines_are_unchanged(text: str) -> None:
    """An own task or program may have an option of this name."""
    assert moved(text) == parse(text.split(), {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--replay", "--replay needs a value"),
        ("--replay a train.steps=3", "takes the arguments of train pretrain from the snapshot; train.steps was"),
    ],
)
def test_other_arguments_are_an_error(arguments: str, message: str) -> None:
    """They would silently differ from the original run."""
    with pytest.raises(UsageError, match=message):
        moved(f"direct -- train pretrain {arguments}")


def test_the_task_of_the_snapshot_must_be_the_typed_one() -> None:
    """The arguments are those of the snapshot, the runtime is the typed one."""
    line = moved("direct --nproc 2 -- train pretrain --replay runs/a")
    found = replay_option.with_task_of(
        line, parse(["slurm", "srun", "-N", "2", "--", "train", "pretrain", "--config", "x", "train.steps=3"], {})
    )

    assert (found.runtimes, found.words) == (("direct",), ("train", "pretrain", "--config", "x", "train.steps=3"))
    with pytest.raises(
        UsageError, match=r"runs/a is not a run of train pretrain: its task is benchmark gemm\n  fix: primus-cli --replay runs/a"
    ):
        replay_option.with_task_of(line, parse(["direct", "--", "benchmark", "gemm"], {}))


def test_a_run_of_slurm_can_be_replayed_without_slurm() -> None:
    """The setting that reads the variables of a step is dropped, unless Slurm starts the replay."""
    restored = {"direct.nodes_from": "slurm", "direct.grace": 9}

    assert [item.path for item in replay_option.settings(restored, ("direct",))] == ["direct.grace"]
    assert [item.path for item in replay_option.settings(restored, ("slurm",))] == ["direct.nodes_from", "direct.grace"]
