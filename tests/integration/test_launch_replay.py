"""primus_bootstrap.launch.snapshot.replay: restored parts and differences. tests/workloads tests bit-equal losses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.settings.layered_settings import Setting
from primus_bootstrap.launch.snapshot import replay, run_snapshot
from tests.integration.launch_cli_rig import User
from tests.unit.launch_plans import SECRETS, plan, project

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.launch.run_plan import Plan


def recorded(tmp_path: Path, **changes: Any) -> tuple[Path, Plan]:
    """Take the snapshot of a project's run; return the run folder and the plan."""
    folder = project(tmp_path / "job")
    made = plan(folder, **changes)
    run_snapshot.take(made, folder / "A")
    return folder / "A", made


def test_command_folder_settings_and_environment_are_restored(tmp_path: Path) -> None:
    """The run folder is not restored: a replay has its own."""
    run_dir, made = recorded(tmp_path)
    found = replay.load(run_dir, {"LANG": "de_DE", "NEW": "1", "SSH_TTY": "/dev/pts/1", **SECRETS})

    assert (found.command, found.cwd) == (made.command, made.cwd)
    assert found.settings == {"main.output": "", "direct.nproc": 2, "direct.env": {}}
    assert found.environment == {"PATH": "/usr/bin:/bin", "LANG": "C", "NCCL_DEBUG": "WARN", "NEW": None}
    assert found.notes == ()


def test_the_snapshot_folder_can_be_given(tmp_path: Path) -> None:
    """A snapshot can be copied without its run."""
    run_dir, made = recorded(tmp_path)

    assert replay.load(run_dir / "snapshot", {}).command == made.command


def test_secrets_come_from_the_environment_of_the_replay(tmp_path: Path) -> None:
    """A note names the missing ones; no variable is set to ***."""
    setting = Setting("direct.env", {"HF_TOKEN": SECRETS["HF_TOKEN"], "MODE": "x"}, "flag --env")
    words = ("direct", "--env", f"HF_TOKEN={SECRETS['HF_TOKEN']}", "--", "train.py")
    run_dir, _ = recorded(tmp_path, settings=(setting,), command=words)
    without = replay.load(run_dir, {"DB_PASSWORD": "of-today", "PRIVATE_KEY": "of-today"})
    having = replay.load(run_dir, {"DB_PASSWORD": "of-today", "PRIVATE_KEY": "of-today", "HF_TOKEN": "of-today"})

    assert without.settings["direct.env"] == {"MODE": "x"}
    assert without.notes == ("these secrets are not in the snapshot and not set: HF_TOKEN; set them if the run needs them",)
    assert (having.settings["direct.env"], having.notes) == ({"HF_TOKEN": "of-today", "MODE": "x"}, ())
    assert "***" not in json.dumps([dict(without.environment), dict(having.environment)])


def test_a_secret_in_the_command_is_an_error(tmp_path: Path) -> None:
    """A command with *** would be another run."""
    run_dir, _ = recorded(tmp_path, command=("direct", "--", "train.py", "--password", "very-secret"))

    with pytest.raises(UsageError, match="a secret, which the snapshot has only masked"):
        replay.load(run_dir, {})


@pytest.mark.parametrize("word", ["x.yaml", "--config=x.yaml", "{folder}/x.yaml"])
def test_a_changed_configuration_is_taken_from_the_snapshot(tmp_path: Path, word: str) -> None:
    """Alone or after `=`, relative or absolute."""
    named = word.format(folder=tmp_path / "job")
    run_dir, _ = recorded(tmp_path, program_arguments=(named,), command=("direct", "--", named))
    (tmp_path / "job/x.yaml").unlink()
    found = replay.load(run_dir, SECRETS)

    assert found.command[-1] == named.replace(named.rpartition("=")[2], str(run_dir / "snapshot/files/01-x.yaml"))
    assert found.notes == (f"{tmp_path}/job/x.yaml no longer exists; the copy in the snapshot is used",)


def test_an_unchanged_run_has_no_differences(tmp_path: Path) -> None:
    """Also with --strict."""
    run_dir, made = recorded(tmp_path)
    again = replace(made, run_dir=str(tmp_path / "job/B"))

    assert replay.check(run_dir, again, strict=True) == ("replay: machine, packages, code and settings are unchanged",)


def test_a_replay_with_a_copy_of_a_file_has_no_differences(tmp_path: Path) -> None:
    """The copy has the original content."""
    run_dir, made = recorded(tmp_path)
    (tmp_path / "job/x.yaml").write_text("train: {steps: 400}\n")
    again = replace(made, program_arguments=("--config", str(run_dir / "snapshot/files/01-x.yaml")))
    found = [line for line in replay.check(run_dir, again, strict=False) if "code:" not in line]

    assert found == []


def test_differences_are_listed_and_are_an_error_with_strict(tmp_path: Path) -> None:
    """Driver, package, setting, variable and code differ."""
    run_dir, made = recorded(tmp_path)
    path = run_dir / "snapshot/machine-00000.json"
    machine = json.loads(path.read_text())
    machine["gpu_drivers"]["amdgpu"] = "6.10.5"
    machine["python"]["packages"]["torch"] = "2.4.0"
    path.write_text(json.dumps(machine))
    (tmp_path / "job/train.py").write_text("print('other')\n")
    again = replace(
        made, inherited={**made.inherited, "LANG": "de_DE"}, settings=(Setting("direct.nproc", 8, "x"), Setting("direct.env", {}, "x"))
    )
    found = replay.check(run_dir, again, strict=False)
    with pytest.raises(PlanError, match="differs from the original run") as caught:
        replay.check(run_dir, again, strict=True)

    assert "replay: settings: direct.nproc: 2 -> 8" in found
    assert "replay: environment: LANG: C -> de_DE" in found
    assert "replay: machine: gpu_drivers.amdgpu: 6.10.5 -> (absent)" in found
    assert any(line.startswith("replay: packages: torch: 2.4.0 -> ") for line in found)
    assert any(line.startswith("replay: code: git changes of ") for line in found)
    assert "gpu_drivers.amdgpu: 6.10.5" in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_missing_secret_is_a_difference(tmp_path: Path) -> None:
    """Only the existence of secrets is compared."""
    run_dir, made = recorded(tmp_path)
    other = replace(made, inherited={**made.inherited, "HF_TOKEN": "another-secret-value"})
    none = replace(made, inherited={name: value for name, value in made.inherited.items() if name != "HF_TOKEN"})

    assert replay.differences(run_dir, other) == ()
    assert [item.text() for item in replay.differences(run_dir, none)] == ["environment: HF_TOKEN: *** -> (absent)"]


def test_a_replay_works_without_the_settings_files(tmp_path: Path) -> None:
    """The snapshot has the settings of a deleted settings file and a deleted file of variables."""
    user = User(tmp_path)
    script = user.program("p.sh", "#!/bin/sh\necho got $A with $PRIMUS_TASK\n")
    (user.project / "c.yaml").write_text("direct: {grace: 7}\n")
    (user.project / "vars.env").write_text("A=1\n")
    line = ("--config", "c.yaml", "--output", "first", "direct", "--single", "--script", str(script), "--env", "vars.env", "--")
    first = user.cli(*line)
    (user.project / "c.yaml").unlink()
    (user.project / "vars.env").unlink()
    again = user.cli("--replay", "first", "--output", "second")

    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert "got 1 with script" in again.stdout
    assert "c.yaml no longer exists; its settings are taken from the snapshot" in again.stderr
    assert json.loads((user.project / "second/plan.json").read_text())["settings"]["direct.grace"]["value"] == 7
