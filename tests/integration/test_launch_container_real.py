"""primus_bootstrap.launch.runtimes.container: the engine options, and a run with a fake engine that executes the command."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.launch_cli_rig import ROOT, User, wait_for
from tests.unit.test_launch_container import ENGINE

if TYPE_CHECKING:
    from pathlib import Path


def calls(user: User) -> list[list[str]]:
    """Return the recorded calls of the engine."""
    return [line.split("\x1f") for line in (user.home / "engine.log").read_text().splitlines()]


def planned(user: User, *words: str, **environment: str) -> list[str]:
    """Return the engine's command line in a plan."""
    done = user.cli(
        "--dry-run", "--output", str(user.run_dir), "container", "--image", "img", *words, "--", "train", "pretrain", **environment
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("execute ")]
    return shlex.split(line)[1:]


def test_docker_runs_the_same_command_in_the_container(tmp_path: Path) -> None:
    """The working folder and the run folder are mounted; no option names a device that the host does not have."""
    user = User(tmp_path)
    user.fake_program("docker", ENGINE)
    limit = ("--ulimit", "stack=8388608")
    words = planned(user, "--shm-size", "64g", "--engine-arg=--init", "--volume", str(user.home), *limit, "--nproc", "2")
    inside = words[words.index("img") + 1 :]

    assert words[1:3] == ["run", "--rm"]
    assert {"--ipc=host", "--network=host", "--ulimit=memlock=-1", "--shm-size=64g", "--init"} <= set(words)
    assert [word for word in words if word.startswith("--ulimit=stack")] == ["--ulimit=stack=8388608"]
    assert {f"--volume={folder}:{folder}" for folder in (user.project, user.run_dir, user.home)} <= set(words)
    assert not [word for word in words if word.startswith(("--device", "--gpus", "--privileged"))]
    assert inside[:2] == ["python3", f"{user.run_dir}/primus-cli.pyz"]
    assert inside[2:] == ["--only-flags", "direct", f"--output={user.run_dir}", "--nproc=2", "--python=python3", "--", "train", "pretrain"]
    assert not user.run_dir.exists()


def test_variables_are_passed_by_name(tmp_path: Path) -> None:
    """No value is on a command line; patterns select the names, and settings of primus-cli are not passed."""
    user = User(tmp_path)
    user.fake_program("docker", ENGINE)
    environment = {"NCCL_IB_TC": "106", "HF_TOKEN": "geheim12345", "UNRELATED": "x", "PRIMUS_CLI_DIRECT_GRACE": "9"}
    words = planned(user, "--env", "WANDB_API_KEY=geheim6789", "--env", "MODEL=small", **environment)
    text = " ".join(words)

    assert {"--env=NCCL_IB_TC", "--env=HF_TOKEN", "--env=WANDB_API_KEY", "--env=MODEL"} <= set(words)
    assert "UNRELATED" not in text
    assert "PRIMUS_CLI" not in text
    assert "--grace=9" in words
    assert "geheim" not in text


def test_apptainer_gets_its_own_options(tmp_path: Path) -> None:
    """Binds instead of volumes, a clean environment, and no option of docker."""
    user = User(tmp_path)
    user.fake_program("apptainer", ENGINE)
    words = planned(user, "--volume", f"{user.home}:/data:ro", "--engine", "apptainer")

    assert words[1:4] == ["exec", "--cleanenv", f"--pwd={user.project}"]
    assert f"--bind={user.home}:/data:ro" in words
    assert not [word for word in words if word.startswith(("--volume", "--env", "--ulimit"))]


def test_the_first_installed_engine_is_used(tmp_path: Path) -> None:
    """The order is docker, podman, Apptainer; without any, the error names them."""
    user = User(tmp_path)
    nothing = {"PATH": str(user.programs)}
    none = user.cli("--dry-run", "container", "--image", "i", "--", "train", "pretrain", **nothing)
    user.fake_program("podman", ENGINE)
    podman = user.cli("--dry-run", "container", "--image", "i", "--", "train", "pretrain", **nothing)
    user.fake_program("docker", ENGINE)
    docker = user.cli("--dry-run", "container", "--image", "i", "--", "train", "pretrain", **nothing)

    assert none.returncode == 3
    assert "no container engine is installed (looked for docker, podman, apptainer)" in none.stderr
    assert "engine: podman" in podman.stdout
    assert "engine: docker" in docker.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--volume", "/nowhere/at/all"), "--volume /nowhere/at/all: /nowhere/at/all does not exist"),
        (("--script", "nowhere.py"), "--script nowhere.py: file not found"),
        (("--clean",), "--clean: unknown option"),
    ],
)
def test_errors_are_reported_before_an_engine_is_called(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    """An engine would create a missing folder as root; no option affects other containers."""
    user = User(tmp_path)
    user.fake_program("docker", ENGINE)
    done = user.cli("container", "--image", "i", *words, "--", "train", "pretrain")

    assert done.returncode == 2
    assert message in done.stderr
    assert not (user.home / "engine.log").exists()


def test_a_missing_image_is_an_error_without_gpus(tmp_path: Path) -> None:
    """There is no default image for such a machine."""
    user = User(tmp_path)
    user.fake_program("docker", ENGINE)

    assert "container: no image is set" in user.cli("container", "--gpus", "none", "--", "train", "pretrain").stderr


def test_a_run_in_a_container(tmp_path: Path) -> None:
    """The program gets the variables, its exit code is returned, and only the run's own container is removed."""
    user = User(tmp_path)
    user.fake_program("docker", ENGINE)
    script = user.program(
        "p.py", "import os, sys\nprint('got', os.environ['MODEL'], os.environ['HF_TOKEN'][:3], sys.argv[1:])\nsys.exit(7)\n"
    )
    words = (
        "--output",
        str(user.run_dir),
        "container",
        "--image",
        "img",
        "--single",
        "--script",
        str(script),
        "--env",
        "MODEL=s",
        "--env",
        "HF_TOKEN",
    )
    done = user.cli(*words, "--", "a b", HF_TOKEN="geheim12345")
    called = calls(user)
    plan = json.loads((user.run_dir / "plan.json").read_text())

    assert done.returncode == 7, done.stdout + done.stderr
    assert re.search(r"\[.*/0\] got s geh \['a b'\]", done.stdout)
    assert called[1:] == [["rm", "--force", "c0ffee"]]
    assert plan["command"][2:4] == ["container", "--image"]
    assert not [path for path in user.run_dir.rglob("*") if path.is_file() and b"geheim12345" in path.read_bytes()]


def test_sigterm_reaches_the_program_in_the_container(tmp_path: Path) -> None:
    """The engine's client passes the signal on, and the program writes a checkpoint."""
    user = User(tmp_path)
    user.fake_program("docker", ENGINE)
    text = "import os, signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(75))\nopen('ready', 'w').close()\ntime.sleep(60)\n"
    script = user.program("p.py", text)
    child = user.start("--output", str(user.run_dir), "container", "--image", "img", "--single", "--script", str(script), "--")
    wait_for(user.project / "ready")
    os.kill(child.pid, signal.SIGTERM)
    output, _ = child.communicate(timeout=60)

    assert child.returncode == 75, output


@pytest.mark.parametrize("name", ["2026-11-22T10:15:00", "a,b"])
def test_a_folder_with_a_separator_in_its_name_is_an_error(tmp_path: Path, name: str) -> None:
    """An engine would mount another folder or print an unclear error."""
    user = User(tmp_path)
    user.fake_program("docker", ENGINE)
    done = user.cli("--output", name, "container", "--image", "i", "--", "preflight")

    assert (done.returncode, f"{user.project}/{name} cannot be mounted" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    sys.exit(0)", '    os.system("rm -r " + os.environ["RUN"])\n    sys.exit(0)', ""),
        ('open(word.partition("=")[2], "w").write("c0ffee")', 'os.mkdir(word.partition("=")[2])', "cannot be read (Is a directory)"),
    ],
    ids=["removed", "not to be read"],
)
def test_an_unreadable_run_folder_does_not_hide_the_exit_code(tmp_path: Path, old: str, new: str, message: str) -> None:
    """The exit code is 7, even if the file with the container's id cannot be read."""
    user = User(tmp_path)
    assert old in ENGINE
    user.fake_program("docker", ENGINE.replace(old, new).replace("os.execvpe(", "sys.exit(7)\nos.execvpe("))
    done = user.cli("--output", str(user.run_dir), "container", "--image", "i", "--", "preflight", RUN=str(user.run_dir))

    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr
    assert message in done.stderr


def test_an_engine_that_does_not_answer_does_not_hide_the_exit_code(tmp_path: Path) -> None:
    """The message names the container and the command that removes it."""
    user = User(tmp_path)
    text = ENGINE.replace('if words[0] == "rm":', 'if words[0] == "rm":\n    __import__("time").sleep(60)')
    user.fake_program("docker", text.replace("os.execvpe(", "sys.exit(7)\nos.execvpe("))
    code = "import primus_bootstrap.launch.runtimes.container as c; c._REMOVE_TIMEOUT_S = 1"
    code += "; from primus_bootstrap.launch.commandline.main import main"
    words = ("--output", str(user.run_dir), "container", "--image", "i", "--", "preflight")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}; sys.exit(main({words!r}))"],
        cwd=user.project,
        env=user.full_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 7, done.stderr
    assert "the container may still run\n  fix: " in done.stderr
    assert "docker rm --force c0ffee" in done.stderr
