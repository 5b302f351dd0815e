"""primus_bootstrap.launch.snapshot.snapshot_diff: the differences between two runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.run_plan import Variable
from primus_bootstrap.launch.settings.layered_settings import Setting
from primus_bootstrap.launch.snapshot import run_snapshot, snapshot_diff
from tests.unit.launch_plans import plan, project

if TYPE_CHECKING:
    from pathlib import Path


def two(tmp_path: Path, **changes: Any) -> tuple[Path, Path]:
    """Take snapshots of two runs of one project, the second one changed."""
    folder = project(tmp_path / "job")
    made = plan(folder)
    for name, one in (("A", made), ("B", replace(made, run_dir=str(folder / "B"), **changes))):
        run_snapshot.take(one, folder / name)
    return folder / "A", folder / "B"


def lines(capsys: pytest.CaptureFixture[str], first: Path, second: Path, *more: str) -> tuple[int, list[str]]:
    """Run `snapshot diff`; return its exit code and lines."""
    code = snapshot_diff.main([str(first), str(second), *more])
    return code, capsys.readouterr().out.splitlines()


def test_two_runs_of_the_same_thing_do_not_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run folder and time are of no interest."""
    assert lines(capsys, *two(tmp_path)) == (0, ["no difference"])


def test_each_part_is_compared_in_order_of_importance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Command, settings, files, code, environment, machine, packages: one line per difference."""
    first, second = two(
        tmp_path,
        program_arguments=("--config", "x.yaml", "optimizer.lr=3e-4"),
        environment=(Variable("NCCL_DEBUG", "INFO", "user"),),
        settings=(Setting("main.output", "B", "flag --output"), Setting("direct.nproc", 4, "flag --nproc"), Setting("direct.env", {}, "")),
    )
    path = second / "snapshot/machine-00000.json"
    machine = json.loads(path.read_text())
    machine["node"] = "another"
    machine["gpu_drivers"]["amdgpu"] = "6.12.12"
    machine["python"]["packages"]["PyYAML"] = "5.0"
    path.write_text(json.dumps(machine))
    code, found = lines(capsys, first, second)

    assert code == 1
    assert found[0] == 'command: program_arguments: ["--config", "x.yaml"] -> ["--config", "x.yaml", "optimizer.lr=3e-4"]'
    assert found[1:4] == [
        "settings: direct.nproc: 2 -> 4",
        "environment: NCCL_DEBUG: WARN -> INFO",
        "machine: gpu_drivers.amdgpu: (absent) -> 6.12.12",
    ]
    assert found[4].startswith("packages: PyYAML: ")
    assert len(found) == 5


def test_a_changed_program_and_a_changed_file_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither was committed."""
    folder = project(tmp_path / "job")
    run_snapshot.take(plan(folder), folder / "A")
    (folder / "train.py").write_text("print('other')\n")
    (folder / "x.yaml").write_text("train: {steps: 5}\n")
    run_snapshot.take(plan(folder, run_dir=str(folder / "B")), folder / "B")
    _, found = lines(capsys, folder / "A", folder / "B")

    assert {line.partition(" -> ")[0].rpartition(": ")[0] for line in found} == {
        f"files: {folder}/train.py",
        f"files: {folder}/x.yaml",
        f"code: git changes of {folder}",
        f"code: files of {folder}",
    }


def test_the_last_steps_of_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For A/B runs."""
    first, second = two(tmp_path)
    (first / "steps.jsonl").write_text('{"step": 9, "loss": 2.0, "tokens_per_s": 1000.0, "mfu": null}\n')
    (second / "steps.jsonl").write_text('{"step": 9, "loss": 2.0, "tokens_per_s": 1100.0, "mfu": 0.4}\n')
    _, found = lines(capsys, first, second)

    assert found[1:] == [
        "result: last step: step: 9 -> 9",
        "result: last step: loss: 2 -> 2",
        "result: last step: tokens_per_s: 1000 -> 1100 (+10.0%)",
    ]


def test_json_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each difference has its part, name and both values."""
    code, found = lines(capsys, *two(tmp_path, task="other"), "--json")

    assert code == 1
    assert json.loads("\n".join(found))["differences"] == [{"part": "command", "name": "task", "first": "script", "second": "other"}]


@pytest.mark.parametrize("words", [[], ["A"], ["A", "B", "C"], ["A", "--wrong"]])
def test_two_folders_are_required(words: list[str]) -> None:
    """The error has the correct usage."""
    with pytest.raises(UsageError, match="needs exactly two run folders"):
        snapshot_diff.main(words)
