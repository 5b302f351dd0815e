"""Run one command on many hosts in parallel, in the worker process of `worker.py`, and yield one answer per host."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.fleet.messages import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.fleet.messages import Target, Task

WORKER = ("-P", "-m", "primus_bootstrap.fleet.worker")


def run_on_all(targets: Sequence[Target], task: Task) -> Iterator[Answer]:
    """Run the task on every target, and yield the answers as they arrive.

    Closing the iterator early ends the worker and every connection. A command that already runs on a host may continue.

    Raises:
        RunError: The worker ended before its first answer.
    """
    if not targets:
        return
    request = {"targets": [asdict(target) for target in targets], **asdict(task)}
    waiting = dict.fromkeys(target.host for target in targets)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors, _worker(errors) as worker:
        # Leaving the block closes the worker's stdin, which ends it.
        yield from _answers(worker, json.dumps(request), waiting)
        worker.wait()
        errors.seek(0)
        tail = errors.read()[-2000:].strip()
    if len(waiting) == len(targets):
        raise RunError(
            f"the worker process for the hosts ended with exit code {worker.returncode}: {tail or 'no output'}",
            fix="report this as a defect, with the message above",
        )
    for host in waiting:
        last = tail.splitlines()[-1] if tail else "no output"
        yield Answer(host, cause="lost", detail=f"the worker process ended before it had an answer: {last}")


def _worker(errors: Any) -> subprocess.Popen[str]:
    """Start the worker. It ignores Ctrl-C, because this process ends it."""
    return subprocess.Popen(
        [sys.executable, *WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        encoding="utf-8",
        errors="replace",
        preexec_fn=_ignore_interrupt,  # noqa: PLW1509 (nothing here runs threads that hold locks)
    )


def _ignore_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _answers(worker: subprocess.Popen[str], request: str, waiting: dict[str, None]) -> Iterator[Answer]:
    """Send the request and yield the answers; remove each answered host from `waiting`.

    stdin stays open: closing it ends the worker.
    """
    assert worker.stdin is not None  # noqa: S101 (for the type checker)
    assert worker.stdout is not None  # noqa: S101
    try:
        worker.stdin.write(f"{request}\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return
    for line in worker.stdout:
        if not line.endswith("\n"):
            return  # the worker was killed while it wrote this answer
        answer = Answer(**json.loads(line))
        waiting.pop(answer.host, None)
        yield answer
