"""Run primus-cli with the environment of a training backend, which is kept in the cache of the tests."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.launch.backends import environments
from primus_bootstrap.launch.backends.registry import backend
from primus_bootstrap.launch.checkpoints import newest_complete
from tests.integration.launch_cli_rig import START, User
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("PRIMUS_TEST_BACKENDS") or Path.home() / ".cache" / "primus-bootstrap" / "backends")
SHIM = {"PRIMUS_TEST_CPU_SHIM": "1"}
LIMIT_S = 900.0  # importing a backend and torch takes a minute on a busy machine


def python_of(name: str) -> str:
    """Return the interpreter of a backend's environment; skip the test without it."""
    found = environments.find(backend(name), FOLDER)
    if found.state != environments.OK:
        pytest.skip(f"{name} {found.version}: {found.state} in {FOLDER}; `primus-cli backend install {name} --folder {FOLDER}` installs it")
    return str(found.python)


@dataclass(frozen=True)
class Trained:
    """One run: its exit code, its output, and what it has written."""

    code: int
    output: str
    folder: Path

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the records of a file of the run folder."""
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [record["loss"] for record in self.lines("steps.jsonl")]


def command(folder: Path, ranks: int, arguments: Sequence[str], task: str = "pretrain") -> list[str]:
    """Return a command that trains with `train pretrain`, or another task of `train`, in a run folder."""
    options = ["direct", "--nproc", str(ranks), "--backend-folder", str(FOLDER)]
    return [*START, "--output", str(folder), *options, "--", "train", task, *arguments]


def train(user_folder: Path, *arguments: str, ranks: int = 1, task: str = "pretrain") -> Trained:
    """Train to the end."""
    user, folder = User(user_folder), user_folder / "run"
    done = subprocess.run(
        command(folder, ranks, arguments, task),
        cwd=user.project,
        env=user.full_environment(**SHIM),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
    )
    return Trained(done.returncode, done.stdout, folder)


def stop_after(steps: int, user_folder: Path, *arguments: str, task: str = "pretrain") -> Trained:
    """Train, and send SIGTERM to primus-cli after a number of steps."""
    user, folder = User(user_folder), user_folder / "run"
    log = user_folder / "stopped.log"
    with log.open("w") as output:
        environment = user.full_environment(**SHIM)
        process = subprocess.Popen(
            command(folder, 1, arguments, task), cwd=user.project, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            seen = Trained(0, "", folder)
            until(lambda: len(seen.losses) >= steps or process.poll() is not None, log.read_text, limit_s=LIMIT_S)
            process.terminate()
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
    return Trained(code, log.read_text(), folder)


def ask_parser(python: str, name: str, asked: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the answers of a backend's own parser, by the names of the questions."""
    done = subprocess.run(
        [python, "-W", "ignore", str(ROOT / "workloads" / "backends" / name / "parse.py")],
        input="\n".join(map(json.dumps, asked)),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(asked), done.stderr
    return {answer["name"]: answer for answer in answers}


def errors_of_parser(python: str, name: str, asked: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the errors of a backend's own parser, by the names of the questions."""
    return {key: answer["error"] for key, answer in ask_parser(python, name, asked).items() if answer["error"]}


def check_stop_and_resume(user_folder: Path, *arguments: str) -> tuple[Trained, dict[str, Any], dict[str, Any]]:
    """Stop a run with SIGTERM and continue it with more steps; return the stopped run, its last step and the next one."""
    stopped = stop_after(8, user_folder, *arguments, "train.steps=2000")
    assert stopped.code == 75, stopped.output
    last = stopped.lines("steps.jsonl")[-1]
    assert newest_complete(stopped.folder / "checkpoints") == f"step-{last['step']:08d}"
    assert stopped.lines("results.jsonl")[-1]["outcome"] == "stopped early"
    resumed = train(user_folder, *arguments, f"train.steps={last['step'] + 2}")
    assert resumed.code == 0, resumed.output
    new = [record for record in resumed.lines("steps.jsonl") if record["step"] > last["step"]]
    assert [record["step"] for record in new] == [last["step"] + 1, last["step"] + 2]
    assert new[0]["loss"] < last["loss"] + 0.5
    return stopped, last, new[0]


def check_start_from(user_folder: Path, stopped: Trained, last: dict[str, Any], *arguments: str) -> Trained:
    """Start another run from the last checkpoint of a stopped one; return it."""
    marked = stopped.folder / "checkpoints" / f"step-{last['step']:08d}"
    user_folder.mkdir()
    other = train(user_folder, *arguments, "train.steps=1", "checkpoint.at_end=false", f"checkpoint.start_from={marked}")
    assert other.code == 0, other.output
    assert other.losses[0] < last["loss"] + 0.5
    return other
