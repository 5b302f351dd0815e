"""Starts Ansible through ansible-runner and passes on its events."""

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
from primus_bootstrap.engine.orphans import adopting
from primus_bootstrap.engine.state_folder import RUNNER_LEFTOVERS, state_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

RawEvent = dict[str, Any]

# ansible-runner keeps all output in memory, and calls cancel_callback only, when one of its password patterns matches.
# A pattern that matches every line end, without an answer, bounds the memory.
_EVERY_LINE: dict[str, None] = {r"\n": None}
_POLL_S = 0.1
# Interval for reading the events of a nested Ansible (Kubespray's) while the outer one prints nothing.
_NESTED_POLL_S = 1


@dataclass(frozen=True, slots=True)
class AnsibleProcess:
    """One Ansible process.

    `executable` is the path of `ansible-playbook`. `arguments` excludes inventory, limit and playbook, and contains no secret.
    `private_dir` is deleted when the process ends. `artifacts_dir` receives Ansible's output. `lines` receives the events of
    a nested Ansible (Kubespray's), one JSON line per event.
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
    """Runs one Ansible process."""

    def run(self, process: AnsibleProcess, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
        """Run Ansible, pass on each event, and stop when `cancel` is set; return the exit code, or 128 + signal number.

        No process that it started is alive afterwards.
        """


class AnsibleRunner:
    """Runs `ansible-playbook` through ansible-runner, under the supervisor (`shim.py`)."""

    grace_s = 10.0

    def run(self, process: AnsibleProcess, on_event: Callable[[RawEvent], None], cancel: threading.Event) -> int:
        """See `Runner.run`."""
        config = self._config(process)
        errors: list[BaseException] = []
        ended = threading.Event()
        pid_file = process.private_dir / shim.PID_FILE
        stopper = threading.Thread(target=_stop_on_demand, args=(pid_file, (cancel, errors), ended), daemon=True)
        stopper.start()
        handle = _event_handler(on_event, errors)
        nested = NestedEventReader(process.lines, handle)
        try:
            runner = _AnsibleRunner(config, event_handler=nested.before(handle), cancel_callback=nested.read)
            local_temp = f"ANSIBLE_LOCAL_TEMP={process.environment['ANSIBLE_LOCAL_TEMP']}"
            with adopting(local_temp, process.lock), state_errors(RunError, process.artifacts_dir):
                runner.run()
            nested.read()
        finally:
            ended.set()
            stopper.join()
            _clean(process)
        if errors:
            raise errors[0]
        return int(runner.rc if runner.rc is not None else 128 + signal.SIGKILL)  # None: the supervisor itself was killed

    def _config(self, process: AnsibleProcess) -> Any:
        config = RunnerConfig(
            private_data_dir=str(process.private_dir),
            artifact_dir=str(process.artifacts_dir.parent),
            ident=process.artifacts_dir.name,
            project_dir=str(process.working_dir),
            binary=sys.executable,
            inventory=str(process.inventory),
            limit=process.limit or None,
            cmdline=shlex.join(
                ["-I", str(Path(shim.__file__).resolve()), str(process.executable), str(process.playbook), *process.arguments]
            ),
            envvars=dict(process.environment) | {"PRIMUS_SHIM": self._settings(process)},
            passwords=dict(_EVERY_LINE),
            fact_cache_type="memory",
            quiet=True,
            suppress_env_files=True,
        )
        config.pexpect_timeout = _NESTED_POLL_S
        config.prepare()
        return config

    def _settings(self, process: AnsibleProcess) -> str:
        """Return the settings of the supervisor as JSON."""
        settings = {
            "parent": os.getpid(),
            "lock": str(process.lock),
            "private": str(process.private_dir),
            "leftovers": [str(path) for path in _leftovers(process)],
            "grace_s": self.grace_s,
        }
        return json.dumps(settings)


def parse_line(line: bytes) -> RawEvent | None:
    """Parse a line of the callback plug-in `primus_lines`; return None if the line is damaged."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event_data", {}), dict) else None


class NestedEventReader:
    """Reads the events of a nested Ansible while it writes them, and passes them on with `foreign` set."""

    def __init__(self, path: Path, on_event: Callable[[RawEvent], object]) -> None:
        """Store the path; the file appears with the first event."""
        self._path, self._on_event, self._offset = path, on_event, 0

    def read(self) -> bool:
        """Pass on new complete lines. Always return False: ansible-runner would stop the run on True."""
        if self._path.is_file():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    event = parse_line(line)
                    if event is None:
                        log.warning("%s: skipped a damaged line: %.200r", self._path, line)
                    else:
                        self._on_event({**event, "foreign": True})
        return False

    def before(self, handle: Callable[[RawEvent], bool]) -> Callable[[RawEvent], bool]:
        """Return a handler for the outer Ansible's events that first passes on all nested events.

        A nested failure that arrived after the outer recap would be lost.
        """

        def read_and_handle(event: RawEvent) -> bool:
            self.read()
            return handle(event)

        return read_and_handle


def _event_handler(on_event: Callable[[RawEvent], None], errors: list[BaseException]) -> Callable[[RawEvent], bool]:
    """Return a handler that makes ansible-runner write no event file: results may contain secrets.

    Exceptions of `on_event` go to `errors`, because ansible-runner would leave Ansible running and files open.
    """

    def handle(event: RawEvent) -> bool:
        if not errors:
            try:
                on_event(event)
            except BaseException as error:  # noqa: BLE001 - raised again once Ansible has ended
                errors.append(error)
        return False

    return handle


def _stop_on_demand(pid_file: Path, reasons: tuple[threading.Event, list[BaseException]], ended: threading.Event) -> None:
    """Wait for a reason to stop, then send SIGTERM to the supervisor."""
    cancel, errors = reasons
    while not ended.wait(_POLL_S):
        if cancel.is_set() or errors:
            try:
                os.kill(int(pid_file.read_text(encoding="ascii")), signal.SIGTERM)
            except (FileNotFoundError, ValueError):
                continue  # the supervisor has not written its pid yet, or has just ended
            except ProcessLookupError:
                pass
            return


def _leftovers(process: AnsibleProcess) -> tuple[Path, Path, Path]:
    """Return the files with possible secrets that Ansible leaves: events, the command, and the nested events."""
    events, command = (process.artifacts_dir / name for name in RUNNER_LEFTOVERS)
    return events, command, process.lines


def _clean(process: AnsibleProcess) -> None:
    events, command, lines = _leftovers(process)
    shutil.rmtree(events, ignore_errors=True)
    command.unlink(missing_ok=True)
    lines.unlink(missing_ok=True)
    shutil.rmtree(process.private_dir, ignore_errors=True)


def last_error(artifacts_dir: Path) -> str:
    """Return the last error in Ansible's output, for a run that ended without a recap."""
    output = artifacts_dir / "stdout"
    if not output.is_file():
        return ""
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - 20000))
        text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\r", "", file.read().decode(errors="replace"))
    errors = re.findall(r"(?:\[ERROR\]: |ERROR! )(.+?)(?:\n\n|\Z)", text, re.DOTALL)
    return errors[-1].strip() if errors else "\n".join(text.strip().splitlines()[-5:])
