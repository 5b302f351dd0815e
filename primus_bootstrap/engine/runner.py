"""Starts Ansible and hands its events on: the seam of the engine, and the only module that imports ansible_runner.

Whatever runs playbooks is a `Runner`: Kubespray, with its own Ansible in its own environment, becomes one more whose
events reach the same journal.
"""

from __future__ import annotations

import json
import logging
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

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.engine import shim
from primus_bootstrap.engine.history import LEFT_BY_RUNNER
from primus_bootstrap.engine.orphans import adopting
from primus_bootstrap.engine.state_errors import state_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

RawEvent = dict[str, Any]

# ansible-runner keeps all output in memory until one of its password patterns is seen, and asks whether to go on only
# then. A pattern that every line end matches, with nothing to answer, keeps it small.
_EVERY_LINE: dict[str, None] = {r"\n": None}
_POLL_S = 0.1
# How often the events of an Ansible that a task started are looked for while the first one is silent.
_FOLLOW_S = 1


@dataclass(frozen=True, slots=True)
class Job:
    """One Ansible process: what to run, where, and with which environment.

    `executable` is the `ansible-playbook` of the environment to use. `arguments` are those besides inventory, limit and
    playbook; none of them is a secret. `private_dir` is removed when the process ends, however it ends; `artifacts_dir`
    keeps Ansible's own output. To `lines` an Ansible that a task starts (Kubespray's) writes its events, one JSON line each.
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
    lines: Path


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
        hand_on = _keeping_nothing(on_event, errors)
        follow = NestedEventReader(job.lines, hand_on)
        try:
            runner = _AnsibleRunner(config, event_handler=follow.before(hand_on), cancel_callback=follow.read)
            local_temp = f"ANSIBLE_LOCAL_TEMP={job.environment['ANSIBLE_LOCAL_TEMP']}"
            with adopting(local_temp, job.lock), state_errors(RunError, job.artifacts_dir):
                runner.run()
            follow.read()
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
        config.pexpect_timeout = _FOLLOW_S
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


def parse_line(line: bytes) -> RawEvent | None:
    """Return the event in a line that the callback plug-in primus_lines wrote; None if it is damaged."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event_data", {}), dict) else None


class NestedEventReader:
    """The events of an Ansible that a task started, read as they are written; each is handed on with `foreign` set."""

    def __init__(self, path: Path, hand_on: Callable[[RawEvent], object]) -> None:
        """Keep where they are; the file comes with the first of them."""
        self._path, self._hand_on, self._at = path, hand_on, 0

    def read(self) -> bool:
        """Hand on what is new and whole; never asks for an end, which is what ansible-runner takes the answer for."""
        if self._path.is_file():
            with self._path.open("rb") as file:
                file.seek(self._at)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._at += len(line)
                    event = parse_line(line)
                    if event is None:
                        log.warning("%s: a line that is no event was skipped: %.200r", self._path, line)
                    else:
                        self._hand_on({**event, "foreign": True})
        return False

    def before(self, hand_on: Callable[[RawEvent], bool]) -> Callable[[RawEvent], bool]:
        """Return `hand_on` for the events of the first Ansible: what was written before one is handed on before it.

        Its recap is among them, and ansible-runner may read the end of its output in one piece: a failure read after the recap is lost.
        """

        def handle(event: RawEvent) -> bool:
            self.read()
            return hand_on(event)

        return handle


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


def _leftovers(job: Job) -> tuple[Path, Path, Path]:
    """Return what is left and nobody may keep: what ansible-runner wrote of it, and the lines that were read."""
    events, command = (job.artifacts_dir / name for name in LEFT_BY_RUNNER)
    return events, command, job.lines


def _clean(job: Job) -> None:
    events, command, lines = _leftovers(job)
    shutil.rmtree(events, ignore_errors=True)
    command.unlink(missing_ok=True)
    lines.unlink(missing_ok=True)
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
