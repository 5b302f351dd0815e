"""primus_bootstrap.launch.tasks: the registry, and tasks of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from primus_bootstrap.launch.errors import UsageError
from primus_bootstrap.launch.tasks import Request, all_tasks, find_task
from tests.unit.launch_cli_rig import User

OURS = {"train pretrain", "train posttrain", "benchmark", "benchmark --list", "preflight", "analyze"}


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
        (["train"], "no such task: train"),
        (["train", "pretrian"], "no such task: train pretrian\n  fix: did you mean train pretrain?"),
        (["bench"], "did you mean benchmark?"),
        ([], "there is no task after --"),
    ],
)
def test_another_word_gets_the_nearest_task(words: list[str], message: str) -> None:
    """A slip is answered with a name."""
    with pytest.raises(UsageError) as raised:
        find_task(words)

    assert message in str(raised.value)


def test_the_trainers_are_there() -> None:
    """What the training tasks start exists in the tree."""
    root = Path(__file__).resolve().parents[2] / "workloads"
    for name in ("train pretrain", "train posttrain"):
        program = all_tasks()[name].program
        assert program is not None
        assert Path(program(Request((), "python3", lambda: root)).argv[0]).is_file()


def test_an_installed_package_brings_a_task_by_its_entry_point(tmp_path: Path) -> None:
    """A package with the entry-point group primus_cli.tasks is found without a change here, and runs like any other task."""
    user = User(tmp_path)
    site = tmp_path / "site"
    information = site / "extra_tasks-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-tasks\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[primus_cli.tasks]\ncount = extra_tasks:TASK\n")
    (site / "extra_tasks.py").write_text(
        "from primus_bootstrap.launch.tasks import HERE, Task\n\n"
        "def run(arguments):\n    print('counted', len(arguments))\n    return 0\n\n"
        "TASK = Task(name='count', meaning='Counts.', usage='', launcher=HERE, run=run)\n"
    )
    done = user.cli("direct", "--", "count", "a", "b", PYTHONPATH=str(site))
    shown = user.cli("tasks", PYTHONPATH=str(site))

    assert (done.returncode, done.stdout) == (0, "counted 2\n"), done.stderr
    assert "  count " in shown.stdout
