"""primus_bootstrap.launch.tasks: the registry, and tasks of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.tasks import Request, all_tasks, find_task

OURS = {"train pretrain", "train posttrain", "benchmark", "benchmark --list", "preflight", "analyze", "analyze topology"}


def test_the_tasks_of_this_package() -> None:
    """Each file of the package is one task."""
    assert set(all_tasks()) == OURS


def test_a_task_is_found_by_one_word_or_two() -> None:
    """The words after its name are its arguments."""
    assert [(task.name, rest) for task, rest in (find_task(["train", "pretrain", "a"]), find_task(["benchmark", "gemm"]))] == [
        ("train pretrain", ("a",)),
        ("benchmark", ("gemm",)),
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "no such task: train\n  fix: choose from: train posttrain, train pretrain"),
        (["train", "pretrian"], "no such task: train pretrian\n  fix: did you mean train pretrain?"),
        (["bench"], "did you mean benchmark?"),
        ([], "no task is given after --"),
    ],
)
def test_unknown_word_suggests_the_nearest_task(words: list[str], message: str) -> None:
    """The error contains its name."""
    with pytest.raises(UsageError) as raised:
        find_task(words)

    assert message in str(raised.value)


def test_trainers_exist() -> None:
    """The files that the training tasks start are in the tree."""
    root = Path(__file__).resolve().parents[2] / "workloads"
    for name in ("train pretrain", "train posttrain"):
        program = all_tasks()[name].program
        assert program is not None
        assert Path(program(Request((), "python3", lambda: root)).argv[0]).is_file()
