"""Run one command on many hosts in parallel; answers come as they arrive, one for every host, whatever happens.

The work is done by `worker.py` in a process of its own; this module speaks to it and knows neither pyinfra nor gevent.
"""

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


def ask_all(targets: Sequence[Target], task: Task) -> Iterator[Answer]:
    """Run the task on every target, and yield one answer for each as it comes.

    Closing the iterator early ends the worker and with it every connection. A command that was already started on a host
    may outlive that.

    Raises:
        RunError: the worker ended before it had answered for a single host.
    """
    if not targets:
        return
    request = {"targets": [asdict(target) for target in targets], **asdict(task)}
    waiting = dict.fromkeys(target.host for target in targets)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors, _worker(errors) as worker:
        # Leaving the block, early as well, closes the worker's stdin, and that ends it.
        yield from _answers(worker, json.dumps(request), waiting)
        worker.wait()
        errors.seek(0)
        tail = errors.read()[-2000:].strip()
    if len(waiting) == len(targets):
        raise RunError(
            f"the process that asks the hosts ended with {worker.returncode}: {tail or 'it said nothing'}",
            fix="this is a defect: report it",
        )
    for host in waiting:
        last = tail.splitlines()[-1] if tail else "it said nothing"
        yield Answer(host, cause="lost", detail=f"the process that asks the hosts ended without an answer: {last}")


def _worker(errors: Any) -> subprocess.Popen[str]:
    """Start the worker; Ctrl-C is for this process, which then ends it."""
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
    """Hand over the request and read the answers; `waiting` loses every host that has answered.

    stdin stays open until the end: its end tells the worker that nobody listens any more.
    """
    assert worker.stdin is not None  # noqa: S101 (for the type checker)
    assert worker.stdout is not None  # noqa: S101
    try:
        worker.stdin.write(f"{request}\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return
    for line in worker.stdout:
        answer = Answer.parse(json.loads(line))
        waiting.pop(answer.host, None)
        yield answer
