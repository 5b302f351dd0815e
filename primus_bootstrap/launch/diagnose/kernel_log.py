"""Read the kernel log of a node, and save it in the run folder. It shows lost GPUs and processes killed for memory.

If the log cannot be read, the reason is saved instead, so that it differs from a log without lines.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.commands import run_command
from primus_bootstrap.launch.diagnose.causes import match_kernel
from primus_bootstrap.launch.diagnose.log_lines import LINE_CHARACTERS
from primus_bootstrap.launch.ranks import rank_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_TIMEOUT_S = 20
_SAVED_LINES, _SAVED_MATCHES = 200, 1000  # the last lines, and the first lines that match a cause
_READ_LINES = 50_000  # of the journal: a driver in a loop can log millions
_FILE_BYTES = 1 << 23
_RECORD_BYTES = 8192  # the longest record of /dev/kmsg: Linux kernel/printk/printk.c, PRINTK_MESSAGE_MAX 2048 with its escapes


@dataclass(frozen=True)
class KernelLog:
    """The kernel log of one node since a run's start: (seconds since the epoch, text). `problem` is why it could not be read."""

    node: str
    lines: tuple[tuple[float, str], ...] = ()
    problem: str = ""


def collect(run_dir: Path, node: str, node_rank: int, since: float) -> KernelLog:
    """Read this host's kernel log since a time and save it in the run folder."""
    found = read(since)
    log = KernelLog(node, problem=found) if isinstance(found, str) else KernelLog(node, _relevant(found))
    path = rank_log.kernel_path(run_dir, node_rank)
    with suppress(OSError):  # the run's disk may be the cause
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"node": log.node, "problem": log.problem, "lines": log.lines}) + "\n", durable=False)
    return log


def read(since: float) -> list[tuple[float, str]] | str:
    """Return the kernel's lines of this boot since a time, (seconds since the epoch, text), or, as text, why they cannot be read."""
    found = _journal(since)
    if not isinstance(found, str):
        return found
    messages = _kernel_messages(since)
    return f"{found}; {messages}" if isinstance(messages, str) else messages


def read_all(run_dir: Path) -> tuple[KernelLog, ...]:
    """Return the saved kernel logs of a run's nodes."""
    logs: list[KernelLog] = []
    for path in sorted(rank_log.kernel_path(run_dir, 0).parent.glob("kernel-*.json")):
        with suppress(OSError, ValueError, TypeError, KeyError):
            if path.stat().st_size > _FILE_BYTES:
                logs.append(KernelLog(path.stem, problem=f"logs/{path.name} is larger than {_FILE_BYTES >> 20} MiB"))
                continue
            data = json.loads(path.read_text("utf-8", "replace"))
            lines = tuple((float(at), str(text)) for at, text in data["lines"])
            logs.append(KernelLog(str(data["node"]), lines, str(data["problem"])))
    return tuple(logs)


def _relevant(lines: Iterable[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    found = [(at, text[:LINE_CHARACTERS]) for at, text in lines]
    matching = (index for index, (_, text) in enumerate(found) if match_kernel(text))
    kept = {*range(max(0, len(found) - _SAVED_LINES), len(found)), *islice(matching, _SAVED_MATCHES)}
    return tuple(found[index] for index in sorted(kept))


def _journal(since: float) -> list[tuple[float, str]] | str:
    """Return the lines in the journal, or, as text, why there are none."""
    command = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--output=short-unix", f"--since=@{since:.0f}"]
    command.append(f"--lines={_READ_LINES}")
    try:
        done = run_command(command, timeout_s=_TIMEOUT_S)
        unusable = done.code != 0 or not _has_kernel_lines()
    except OSError as error:
        return f"journalctl: {error}"
    if unusable:
        return f"journalctl: {done.stderr.strip()[-200:] or 'the journal contains no kernel messages'}"
    return list(_journal_lines(done.stdout))


def _has_kernel_lines() -> bool:
    """Return whether the journal contains kernel messages of this boot. If so, an empty output means that there are no new ones."""
    command = ["journalctl", "--dmesg", "--boot", "--quiet", "--no-pager", "--lines=1"]
    done = run_command(command, timeout_s=_TIMEOUT_S)
    return done.code == 0 and bool(done.stdout.strip())


def _journal_lines(text: str) -> Iterator[tuple[float, str]]:
    for line in text.splitlines():
        at, _, rest = line.partition(" ")
        with suppress(ValueError):  # a continuation line, or a marker such as `-- Boot ... --`
            yield float(at), rest


def _kernel_messages(since: float) -> list[tuple[float, str]] | str:
    """Return the lines of /dev/kmsg, or, as text, why they cannot be read."""
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    lines: list[tuple[float, str]] = []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return f"/dev/kmsg: {error.strerror}"
    try:
        while True:
            try:
                record = os.read(descriptor, _RECORD_BYTES).decode("utf-8", "replace")
            except BrokenPipeError:
                continue  # the kernel overwrote the next record
            # `6,1234,5678901,-;text`: priority, number, microseconds since boot. Linux Documentation/ABI/testing/dev-kmsg
            match = re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", record)
            if match and booted + int(match[1]) / 1e6 >= since:
                lines.append((booted + int(match[1]) / 1e6, match[2]))
    except BlockingIOError:
        return lines
    except OSError as error:
        return f"/dev/kmsg: {error.strerror}"
    finally:
        os.close(descriptor)
