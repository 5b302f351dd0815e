"""Starts Ansible and hands its events on: the seam of the engine, and the only module that imports ansible_runner.

Whatever runs playbooks is a `Runner`: Kubespray, with its own Ansible in its own environment, becomes one more whose
events reach the same journal.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ansible_runner.config.runner import RunnerConfig
from ansible_runner.runner import Runner as _AnsibleRunner

from primus_bootstrap.engine import shim
from primus_bootstrap.engine.orphans import adopting
from primus_bootstrap.engine.state import state_errors
from primus_bootstrap.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RawEvent = dict[str, Any]

# ansible-runner keeps all output in memory until one of its password patterns is seen, and asks whether to go on only
# then. A pattern that every line end matches, with nothing to answer, keeps it small.
_EVERY_LINE: dict[str, None] = {r"\n": None}
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Job:
    """One Ansible process: what to run, where, and with which environment.

    `executable` is the `ansible-playbook` of the environment to use. `arguments` are those besides inventory, limit and
    playbook; none of them is a secret. `private_dir` is removed when the process ends, however it ends; `artifacts_dir`
    keeps Ansible's own output.
    """

    executable: Path
    environment: Mapping[str, str]
    working_dir: Path
    playbook: Path
    inventory: Path
    limit: str
    arguments: tuple[str, ...]
    private_dir: Path
    artifacts_dir: Path
    lock: Path


class Runner(Protocol):
    """Runs one job to its end."""

    def run(self, job: Job, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
        """Hand every event over as it comes, tell Ansible to end once `cancel` is set, and return its exit status.

        That is 128 + signal where a signal ended it. Nothing of the job is alive afterwards.
        """


class AnsibleRunner:
    """Runs `ansible-playbook` through ansible-runner, under the shim."""

    grace_s = 10.0

    def run(self, job: Job, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
        """See `Runner.run`."""
        config = self._config(job)
        errors: list[BaseException] = []
        ended = threading.Event()
        teller = threading.Thread(target=_tell, args=(job.private_dir / shim.PID_FILE, (cancel, errors), ended), daemon=True)
        teller.start()
        try:
            runner = _AnsibleRunner(config, event_handler=_keeping_nothing(on_event, errors))
            local_temp = f"ANSIBLE_LOCAL_TEMP={job.environment['ANSIBLE_LOCAL_TEMP']}"
            with adopting(local_temp, job.lock), state_errors(RunError, job.artifacts_dir):
                runner.run()
        finally:
            ended.set()
            teller.join()
            _clean(job)
        if errors:
            raise errors[0]
        return int(runner.rc if runner.rc is not None else 128 + signal.SIGKILL)  # the shim itself was killed, and Ansible with it

    def _config(self, job: Job) -> Any:
        config = RunnerConfig(
            private_data_dir=str(job.private_dir),
            artifact_dir=str(job.artifacts_dir.parent),
            ident=job.artifacts_dir.name,
            project_dir=str(job.working_dir),
            binary=sys.executable,
            inventory=str(job.inventory),
            limit=job.limit or None,
            cmdline=shlex.join(["-I", str(Path(shim.__file__).resolve()), str(job.executable), str(job.playbook), *job.arguments]),
            envvars=dict(job.environment) | {"PRIMUS_SHIM": self._settings(job)},
            passwords=dict(_EVERY_LINE),
            fact_cache_type="memory",
            quiet=True,
            suppress_env_files=True,
        )
        config.prepare()
        return config

    def _settings(self, job: Job) -> str:
        """Return what the shim has to know, as JSON."""
        settings = {
            "parent": os.getpid(),
            "lock": str(job.lock),
            "private": str(job.private_dir),
            "leftovers": [str(path) for path in _leftovers(job)],
            "grace_s": self.grace_s,
        }
        return json.dumps(settings)


def _keeping_nothing(on_event: Callable[[RawEvent], None], errors: list[BaseException]) -> Callable[[RawEvent], bool]:
    """Hand events on and tell ansible-runner to keep no file of them: results may hold what the journal must not.

    What `on_event` raises is put into `errors`: ansible-runner would leave Ansible running and files open.
    """

    def handle(event: RawEvent) -> bool:
        if not errors:
            try:
                on_event(event)
            except BaseException as error:  # noqa: BLE001 - raised again once Ansible has ended
                errors.append(error)
        return False

    return handle


def _tell(pid_file: Path, reasons: tuple[threading.Event, list[BaseException]], ended: threading.Event) -> None:
    """Wait for a reason to end, then tell the shim, once."""
    cancel, errors = reasons
    while not ended.wait(_POLL_S):
        if cancel.is_set() or errors:
            try:
                os.kill(int(pid_file.read_text(encoding="ascii")), signal.SIGTERM)
            except (FileNotFoundError, ValueError):
                continue  # it has not written its pid yet, or it has just ended
            except ProcessLookupError:
                pass
            return


def _leftovers(job: Job) -> tuple[Path, Path]:
    """Return what ansible-runner leaves and nobody may keep: event files, and the command with its whole environment."""
    return job.artifacts_dir / "job_events", job.artifacts_dir / "command"


def _clean(job: Job) -> None:
    events, command = _leftovers(job)
    shutil.rmtree(events, ignore_errors=True)
    command.unlink(missing_ok=True)
    shutil.rmtree(job.private_dir, ignore_errors=True)


def last_error(artifacts_dir: Path) -> str:
    """Return the last error that Ansible printed about itself, for a run that ended without naming a host."""
    output = artifacts_dir / "stdout"
    if not output.is_file():
        return ""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - 20000))
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\r", "", file.read().decode(errors="replace"))
    found = re.findall(r"(?:\[ERROR\]: |ERROR! )(.+?)(?:\n\n|\Z)", text, re.DOTALL)
    return found[-1].strip() if found else "\n".join(text.strip().splitlines()[-5:])
