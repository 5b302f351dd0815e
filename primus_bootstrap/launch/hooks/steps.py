"""Running one hook or patch: as a process with a time limit and a log, and reading the changes that it prints.

Standard output is a contract: a line `env.NAME=VALUE` sets a variable for what follows, `extra.a.b=VALUE` adds an argument to the program.
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
from primus_bootstrap.launch.runtimes.self_exec import own_command

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from primus_bootstrap.launch.runtimes.run_plan import PlannedStep

_CHANGE = re.compile(r"(env|extra)\.([A-Za-z_][\w.-]*)=(.*)")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_LAST_LINES, _LAST_CHARACTERS = 10, 2000
_LONGEST_LINE = 1 << 18  # characters; Linux allows 128 KiB for one variable (MAX_ARG_STRLEN). A longer line is cut into several
APPLIED, SKIPPED, DONE, FAILED, TIMED_OUT, STOPPED = "applied", "skipped", "done", "failed", "timed out", "stopped"


@dataclass(frozen=True)
class StepResult:
    """What one hook or patch did. `code` is None where it was ended; changed variables are kept by name only in the record."""

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
    """What every step of a run shares: its environment apart, these do not change between steps."""

    run_dir: Path
    node_rank: int
    python: str
    words: Sequence[str]
    timeout_s: float
    show: Callable[[str], None]
    signals: child_processes.StopSignals

    def run(self, step: PlannedStep, environment: Mapping[str, str]) -> StepResult:
        """Run one step to its end, its time limit, or a signal to us."""
        name = f"{step.phase}-{Path(step.path).stem}"
        log = self.run_dir / "logs" / f"step-{self.node_rank}-{name}.log"
        started = time.monotonic()
        kept = _Kept(masking.secret_values(environment))
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as output:
            argv = _argv(step.path, self.python, self.words)
            child = child_processes.start(argv, {**environment, "PRIMUS_PHASE": step.phase}, output=output)
        reader = threading.Thread(target=self._read, args=(reading, log, name, kept), daemon=True)
        reader.start()
        code, outcome = self._wait(child, started)
        reader.join(2)  # a child that the step left behind may hold the pipe open
        variables, extras = dict(kept.changes["env"]), dict(kept.changes["extra"])
        last = tuple(kept.masked(line)[:_LAST_CHARACTERS] for line in tuple(kept.last))
        seconds = round(time.monotonic() - started, 3)
        result = StepResult(step.phase, step.path, step.origin, outcome or _outcome(step, code), code, seconds, variables, extras, last)
        with suppress(OSError):  # a full disk: the result is in what is returned
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

    def _read(self, reading: int, log: Path, name: str, kept: _Kept) -> None:
        with os.fdopen(reading, "r", encoding="utf-8", errors="replace") as text:
            whole = True  # the piece before this one ended its line
            while piece := text.readline(_LONGEST_LINE):
                line, ends = piece.rstrip("\n"), piece.endswith("\n")
                kept.add(line, may_change=whole and (ends or len(piece) < _LONGEST_LINE))
                whole = ends
                shown = kept.masked(line)
                with suppress(OSError):  # a full disk: what the step says still counts
                    _append(log, shown)
                self.show(f"[{name}] {shown}")


class _Kept:
    """What is kept of a step's output, however long that is: the changes that it asks for, and its last lines."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self.changes: dict[str, dict[str, str]] = {"env": {}, "extra": {}}
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._secrets = tuple(secrets)

    def add(self, line: str, *, may_change: bool) -> None:
        """Take one line; a part of a line that is too long changes nothing."""
        self.last.append(line)
        change = _CHANGE.fullmatch(line) if may_change else None
        if change:
            self.changes[change[1]][change[2]] = change[3]
            self._secrets = (*self._secrets, *masking.secret_values({change[2]: change[3]}))  # a secret that the hook itself brings

    def masked(self, line: str) -> str:
        """Return a line without the secrets that are known by now."""
        return masking.mask_text(_masked_change(line), self._secrets)


def _append(path: Path, line: str) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode("utf-8", "replace"))


def _masked_change(line: str) -> str:
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


def require(result: StepResult) -> None:
    """Stop the run where a step did not do its work.

    Raises:
        StepError: It failed, took too long, or set something that is no variable.
    """
    kind = "patch" if result.phase == "patch" else f"hook ({result.phase})"
    bad = [name for name in result.variables if not _VARIABLE.fullmatch(name)]
    if bad:
        raise StepError(f"{kind} {result.path}: {bad[0]!r} is no variable's name", fix="print env.NAME=VALUE with letters, digits and _")
    if result.outcome in (DONE, APPLIED, SKIPPED):
        return
    ended = f"it ended with {result.code}" if result.outcome == FAILED else f"it was {result.outcome} after {result.seconds:.0f} s"
    tail = "".join(f"\n  | {line}" for line in result.last_lines)
    fix = (
        "mend it, or give it more time with --hook-timeout-s"
        if result.outcome == TIMED_OUT
        else "read its log in the run folder, logs/step-*"
    )
    raise StepError(f"{kind} {result.path}: {ended}{tail}", fix=fix)
