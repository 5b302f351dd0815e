"""primus_bootstrap.launch.snapshot.run_snapshot: the content of a snapshot, without secrets."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.run_plan import Variable
from primus_bootstrap.launch.snapshot import code_state, machine_state, run_snapshot
from tests.unit.launch_plans import SECRETS, git, plan, project

if TYPE_CHECKING:
    from pathlib import Path


def taken(folder: Path, **changes: Any) -> dict[str, Any]:
    """Take a snapshot of a project's run; return its main part."""
    place = run_snapshot.take(plan(folder, **changes), folder / "A")
    return run_snapshot.read(place, run_snapshot.MAIN)


def everything(folder: Path) -> str:
    """Return the text of all files below a folder."""
    return "".join(path.read_text() for path in sorted(folder.rglob("*")) if path.is_file())


def test_the_snapshot_has_command_settings_code_and_machine(tmp_path: Path) -> None:
    """The folder alone shows what ran, from which code, on which machine."""
    folder = project(tmp_path / "job")
    data = taken(folder)
    machine = run_snapshot.read(folder / "A/snapshot", run_snapshot.machine_name(0))

    assert data["command"] == ["direct", "--output", "A", "--script", "train.py", "--", "--config", "x.yaml"]
    assert data["settings"]["direct.nproc"] == {"value": 2, "origin": "flag --nproc"}
    assert (data["git"][0]["root"], data["git"][0]["commit"], data["git"][0]["dirty"]) == (
        str(folder),
        git(folder, "rev-parse", "HEAD"),
        False,
    )
    assert machine["python"]["packages"]["PyYAML"]
    assert machine["cpus"]
    assert (folder / "A/snapshot/files/01-x.yaml").read_text() == "train: {steps: 4}\n"


def test_no_file_contains_a_secret(tmp_path: Path) -> None:
    """From the environment, the command line, a configuration file, a patch, a remote's address or a hook."""
    folder = project(tmp_path / "job")
    git(folder, "remote", "add", "origin", "https://mia:hunter2hunter2@git.example/x.git")
    (folder / "train.py").write_text(f"token = '{SECRETS['HF_TOKEN']}'\napi_key = 'only-in-the-patch'\n")
    (folder / "x.yaml").write_text("wandb_api_key: only-in-the-file-1\npassword: 'only-in-the-file-2'\nsteps: 5\n")
    (folder / "A/logs").mkdir(parents=True)
    (folder / "A/logs/steps-0.jsonl").write_text(json.dumps({"variables": {"X": f"--password={SECRETS['DB_PASSWORD']}"}}) + "\n")
    arguments = (
        "--config",
        "x.yaml",
        "data.token=only-in-the-arguments",
        "--password",
        "only-behind-an-option",
        f"a={SECRETS['HF_TOKEN']}",
    )
    environment = (Variable("WANDB_API_KEY", "only-in-the-plan", "user"), Variable("URL", "https://u:in-a-url@host/", "user"))
    taken(folder, program_arguments=arguments, words=arguments, command=("direct", "--", *arguments), environment=environment)
    written = everything(folder / "A/snapshot")
    secrets = [line for value in SECRETS.values() for line in value.splitlines()]

    assert "WANDB_API_KEY" in written
    assert [secret for secret in (*secrets, "hunter2", "only-in", "only-behind", "in-a-url") if secret in written] == []


def test_the_patch_against_the_commit_can_be_applied(tmp_path: Path) -> None:
    """Uncommitted code is the usual reason why a result cannot be reproduced."""
    folder = project(tmp_path / "job")
    (folder / "train.py").write_text("print('training differently')\n")
    data = taken(folder)
    git(folder, "checkout", "-q", "train.py")
    git(folder, "apply", str(folder / "A/snapshot" / data["git"][0]["patch"]))

    assert (data["git"][0]["dirty"], data["git"][0]["patch_masked"]) == (True, False)
    assert (folder / "train.py").read_text() == "print('training differently')\n"


def test_a_large_patch_is_omitted(tmp_path: Path) -> None:
    """A data file added by mistake must not fill every run folder; size and digest are recorded."""
    folder = project(tmp_path / "job")
    (folder / "train.py").write_text("x = 1\n" * (code_state.PATCH_BYTES // 6 + 1))
    data = taken(folder)["git"][0]

    assert (data["patch"], data["patch_left_out"]) == ("", True)
    assert data["patch_bytes"] > code_state.PATCH_BYTES
    assert "x = 1" not in everything(folder / "A/snapshot").replace((folder / "train.py").read_text(), "")


def test_a_large_file_is_recorded_by_its_digest(tmp_path: Path) -> None:
    """Data are not copied, but a change is detected."""
    folder = project(tmp_path / "job")
    (folder / "tokens.bin").write_bytes(b"\0" * (code_state.COPY_BYTES + 1))
    kept = {item["path"]: item for item in taken(folder, program_arguments=("data.files=tokens.bin",))["files"]}

    assert kept[str(folder / "tokens.bin")]["copy"] == ""
    assert kept[str(folder / "tokens.bin")]["sha256"] == code_state.file_sha256(folder / "tokens.bin")


def test_a_folder_outside_git_has_a_digest_of_its_code(tmp_path: Path) -> None:
    """A change of the program is detected without git."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "train.py").write_text("x = 1\n")
    first = code_state.folder_digest(folder)
    (folder / "train.py").write_text("x = 2\n")

    assert code_state.repositories([folder], ()) == ()
    assert code_state.folder_digest(folder)["sha256"] != first["sha256"]
    assert first["files"] == 1


def test_each_node_writes_its_machine_and_node_0_the_rest(tmp_path: Path) -> None:
    """All nodes share one folder and do not overwrite each other's files."""
    folder = project(tmp_path / "job")
    made = plan(folder)
    run_snapshot.take(replace(made, topology=replace(made.topology, nnodes=2, node_rank=1)), folder / "A")
    after_the_second = sorted(path.name for path in (folder / "A/snapshot").iterdir())
    run_snapshot.take(replace(made, topology=replace(made.topology, nnodes=2)), folder / "A")

    assert after_the_second == ["machine-00001.json"]
    assert (folder / "A/snapshot/machine-00000.json").is_file()
    assert (folder / "A/snapshot/snapshot.json").is_file()


def test_a_resumed_run_keeps_the_earlier_snapshot(tmp_path: Path) -> None:
    """A resumed run may have other settings."""
    folder = project(tmp_path / "job")
    taken(folder)
    taken(folder, program_arguments=("--config", "x.yaml", "steps=9"))
    earlier = json.loads((folder / "A/snapshot/earlier/001-snapshot.json").read_text())

    assert earlier["program_arguments"] == ["--config", "x.yaml"]
    assert run_snapshot.read(folder / "A/snapshot", run_snapshot.MAIN)["program_arguments"][-1] == "steps=9"


def test_an_interpreter_that_fails_has_a_reason(tmp_path: Path) -> None:
    """A failed query is not an empty list of packages."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)

    assert "exit code 3; no output" in machine_state.describe(sysfs.Host(tmp_path), str(broken), {})["python"]["problem"]
