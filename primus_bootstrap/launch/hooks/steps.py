"""Run one hook or patch with a time limit and a log, and read the changes that it prints.

A line `env.NAME=VALUE` on standard output sets a variable for the following steps and the program; `extra.a.b=VALUE` adds an argument to
the program.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core import child_processes
from primus_bootstrap.core.errors import StepError
from primus_bootstrap.launch import masking
from primus_bootstrap.launch.self_exec import own_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.launch.run_plan import PlannedStep

_CHANGE = re.compile(r"(env|extra)\.([A-Za-z_][\w.-]*)=(.*)")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_LAST_LINES, _LAST_CHARACTERS = 10, 2000
_LONGEST_LINE = 1 << 18  # characters; Linux allows 128 KiB for one variable (MAX_ARG_STRLEN). A longer line is split
APPLIED, SKIPPED, DONE, FAILED, TIMED_OUT, STOPPED = "applied", "skipped", "done", "failed", "timed out", "stopped"


@dataclass(frozen=True)
class StepResult:
    """How one hook or patch ended. `code` is None if it was killed."""

    phase: str
    path: str
    origin: str
    outcome: str
    code: int | None
    seconds: float
    variables: Mapping[str, str]
    extras: Mapping[str, str]
    last_lines: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return the record of the step, secrets masked."""
        return {**asdict(self), "variables": masking.mask_environment(self.variables), "last_lines": list(self.last_lines)}


@dataclass(frozen=True)
class StepRunner:
    """Runs the steps of a run; the fields are the same for all of them."""

    run_dir: Path
    node_rank: int
    python: str
    words: Sequence[str]
    timeout_s: float
    show: Callable[[str], None]
    signals: child_processes.StopSignals

    def run(self, step: PlannedStep, environment: Mapping[str, str]) -> StepResult:
        """Run one step until it ends, its time limit passes, or this process gets a stop signal."""
        name = f"{step.phase}-{Path(step.path).stem}"
        log = self.run_dir / "logs" / f"step-{self.node_rank}-{name}.log"
        started = time.monotonic()
        output = _StepOutput(masking.secret_values(environment))
        reader, writer = os.pipe()
        with os.fdopen(writer, "wb") as pipe:
            argv = _argv(step.path, self.python, self.words)
            child = child_processes.start(argv, {**environment, "PRIMUS_PHASE": step.phase}, output=pipe)
        thread = threading.Thread(target=self._read, args=(reader, log, name, output), daemon=True)
        thread.start()
        code, outcome = self._wait(child, started)
        thread.join(2)  # a child that the step left behind may keep the pipe open
        variables, extras = dict(output.changes["env"]), dict(output.changes["extra"])
        last_lines = tuple(output.mask(line)[:_LAST_CHARACTERS] for line in tuple(output.last))
        seconds = round(time.monotonic() - started, 3)
        outcome = outcome or _outcome(step, code)
        result = StepResult(step.phase, step.path, step.origin, outcome, code, seconds, variables, extras, last_lines)
        with suppress(OSError):  # a full disk; the caller still gets the result
            _append(self.run_dir / "logs" / f"steps-{self.node_rank}.jsonl", json.dumps(result.to_json()))
        return result

    def _wait(self, child: child_processes.Child, started: float) -> tuple[int | None, str]:
        while True:
            code = child_processes.poll(child)
            if code is not None:
                return code, ""
            if self.signals.first is not None or time.monotonic() - started > self.timeout_s:
                child_processes.end_descendants(2)
                return child_processes.poll(child), STOPPED if self.signals.first else TIMED_OUT

    def _read(self, reader: int, log: Path, name: str, output: _StepOutput) -> None:
        with os.fdopen(reader, "r", encoding="utf-8", errors="replace") as text:
            at_line_start = True
            while piece := text.readline(_LONGEST_LINE):
                line, complete = piece.rstrip("\n"), piece.endswith("\n")
                output.add(line, may_change=at_line_start and (complete or len(piece) < _LONGEST_LINE))
                at_line_start = complete
                masked = output.mask(line)
                with suppress(OSError):  # a full disk; the changes still count
                    _append(log, masked)
                self.show(f"[{name}] {masked}")


class _StepOutput:
    """The changes in a step's output, and its last lines."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self.changes: dict[str, dict[str, str]] = {"env": {}, "extra": {}}
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._secrets = tuple(secrets)

    def add(self, line: str, *, may_change: bool) -> None:
        """Add one line; with `may_change` read it as a change. A part of a line that is too long is not a change."""
        self.last.append(line)
        change = _CHANGE.fullmatch(line) if may_change else None
        if change:
            self.changes[change[1]][change[2]] = change[3]
            self._secrets = (*self._secrets, *masking.secret_values({change[2]: change[3]}))

    def mask(self, line: str) -> str:
        """Return a line with the secrets of the environment and of earlier lines masked."""
        return masking.mask_text(_mask_change(line), self._secrets)


def _append(path: Path, line: str) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode("utf-8", "replace"))


def _mask_change(line: str) -> str:
    match = _CHANGE.fullmatch(line)
    return f"{match[1]}.{match[2]}={masking.mask_value(match[2], match[3])}" if match else line


def _argv(path: str, python: str, words: Sequence[str]) -> tuple[str, ...]:
    if path.endswith(".py"):
        return (*own_command(python), "run-hook", path, *words)
    return ("bash", path, *words)


def _outcome(step: PlannedStep, code: int | None) -> str:
    if step.phase == "patch":
        return {0: APPLIED, 2: SKIPPED}.get(code if code is not None else 1, FAILED)
    return DONE if code == 0 else FAILED


def check(result: StepResult) -> None:
    """Check that a step succeeded.

    Raises:
        StepError: It failed, exceeded its time limit, or set a variable with an invalid name.
    """
    kind = "patch" if result.phase == "patch" else f"hook ({result.phase})"
    bad = [name for name in result.variables if not _VARIABLE.fullmatch(name)]
    if bad:
        fix = "use letters, digits and _ in the name: print env.NAME=VALUE"
        raise StepError(f"{kind} {result.path}: {bad[0]!r} is not a valid variable name", fix=fix)
    if result.outcome in (DONE, APPLIED, SKIPPED):
        return
    ended = f"exit code {result.code}" if result.outcome == FAILED else f"{result.outcome} after {result.seconds:.0f} s"
    tail = "".join(f"\n  | {line}" for line in result.last_lines)
    fix = "read its log in the run folder, logs/step-*"
    if result.outcome == TIMED_OUT:
        fix = "correct it, or raise the limit: --hook-timeout-s SECONDS"
    raise StepError(f"{kind} {result.path}: {ended}{tail}", fix=fix)
