"""The program `rank`, started by torchrun for each rank: run the program, write its output to the rank's log files, and record its end.

    … rank --run-dir DIR -- PROGRAM [ARGUMENTS]

The kernel signals this process when torchrun ends, and the program when this process ends. SIGTERM and SIGINT are passed on once each, so
that a program does not write its checkpoint twice. A full disk stops the logs, not the program.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_all, write_atomic
from primus_bootstrap.core.child_processes import signal_on_parent_death
from primus_bootstrap.launch import masking
from primus_bootstrap.launch.ranks import rank_log
from primus_bootstrap.launch.self_exec import own_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

_WRONG_USE, _NOT_FOUND, _NOT_EXECUTABLE = 2, 127, 126  # 126 and 127 as in shells
_FORWARDED = (signal.SIGTERM, signal.SIGINT)
_CHUNK_BYTES = 65536
_LONGEST_LINE_BYTES = 65536
# Children of the program may keep the pipe open after its end: read until they are silent, and at most this long.
_DRAIN_S, _SILENT_S = 5.0, 0.2
# Time for the last checkpoint after the launcher has died; otherwise the launcher's --grace applies.
_ORPHAN_GRACE_S = 120.0
# The first record has the full size, so that the last one can overwrite its block on a full disk.
_RECORD_BYTES = 4096
_DROPPED_LINES, _DROPPED_LINE_CHARACTERS = 12, 200


def prefix(run_dir: str, python: str) -> tuple[str, ...]:
    """Return the words before a rank's program."""
    interpreter, *program = own_command(python)
    return (interpreter, "-I", *program, "rank", "--run-dir", run_dir, "--")


def main(arguments: Sequence[str]) -> int:
    """Run one rank's program; return its exit code, 128 + n if signal n ended it."""
    words = list(arguments)
    if len(words) < 4 or words[0] != "--run-dir" or words[2] != "--":
        sys.stderr.write("rank: wrong arguments\n  fix: rank --run-dir DIR -- PROGRAM [ARGUMENTS]\n")
        return _WRONG_USE
    run_dir, program = Path(words[1]), words[3:]
    parent = os.getppid()
    signal_on_parent_death(signal.SIGTERM, parent)
    environment = {**os.environ}
    environment.setdefault("PYTHONUNBUFFERED", "1")  # a killed program would lose its buffered lines
    output = Output.open(run_dir, _identity(environment), environment)
    return _Supervisor(program, environment, output, parent).run()


def _identity(environment: Mapping[str, str]) -> rank_log.RankRecord:
    def number(name: str, default: int) -> int:
        text = environment.get(name, "")
        return int(text) if text.isdecimal() else default

    return rank_log.RankRecord(
        node=environment.get("PRIMUS_NODE") or socket.gethostname(),
        rank=number("RANK", 0),
        world_size=number("WORLD_SIZE", 1),
        local_rank=number("LOCAL_RANK", 0),
        attempt=number("TORCHELASTIC_RESTART_COUNT", 0),
        pid=os.getpid(),
        started=time.time(),
    )


class Output:
    """The log files and record of one rank. Lines are masked and timestamped; lines that cannot be written are counted."""

    def __init__(self, run_dir: Path, record: rank_log.RankRecord, secrets: Sequence[str]) -> None:
        """Set the paths; `open` writes the first record."""
        self.record = record
        self._paths = rank_log.log_path(run_dir, record.rank), rank_log.events_path(run_dir, record.rank)
        self._record_path = rank_log.record_path(run_dir, record.rank)
        self._secrets = tuple(secrets)
        self._files: list[Any] = []
        self._partial = b""
        self._dropped: deque[str] = deque(maxlen=_DROPPED_LINES)

    @classmethod
    def open(cls, run_dir: Path, record: rank_log.RankRecord, environment: Mapping[str, str]) -> Output:
        """Open the files of a rank and write its first record."""
        secrets = [part for value in masking.secret_values(environment) for part in value.splitlines()]
        output = cls(run_dir, record, secrets)
        try:
            output._record_path.parent.mkdir(parents=True, exist_ok=True)
            output._files = [path.open("ab", buffering=0) for path in output._paths]
            offsets = [file.seek(0, os.SEEK_END) for file in output._files]
            output.record = replace(record, log_offset=offsets[0], events_offset=offsets[1])
        except OSError as error:
            output.record = replace(record, problem=str(error))
        output.write_record()
        return output

    def feed(self, data: bytes) -> None:
        """Add output and write its complete lines."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        while len(self._partial) > _LONGEST_LINE_BYTES:
            lines.append(self._partial[:_LONGEST_LINE_BYTES])
            self._partial = self._partial[_LONGEST_LINE_BYTES:]
        self._write(lines)

    def finish(self, **ending: Any) -> None:
        """Write the incomplete last line and the last record."""
        if self._partial:
            self._write([self._partial])
            self._partial = b""
        self.record = replace(self.record, last_lines=tuple(self._dropped), **ending)
        self.write_record()
        for file in self._files:
            file.close()

    def write_record(self) -> None:
        """Replace the record; on a full disk overwrite the old one in place."""
        content = self._record_content()
        try:
            write_atomic(self._record_path, content, mode=0o644, durable=False)  # a rank must not wait for the disk
        except OSError as error:
            self._write_record_in_place(content, error)

    def _record_content(self) -> bytes:
        """Return the record padded to its full size; drop the oldest lines that do not fit."""
        data = asdict(self.record)
        while len(content := json.dumps(data).encode()) >= _RECORD_BYTES and data["last_lines"]:
            data["last_lines"] = data["last_lines"][1:]
        return content.ljust(_RECORD_BYTES - 1) + b"\n"

    def _write_record_in_place(self, content: bytes, first: OSError) -> None:
        try:
            with self._record_path.open("r+b") as file:
                file.write(content)
                file.truncate()
        except OSError:
            sys.stderr.write(f"rank {self.record.rank}: {self._record_path} cannot be written: {first}\n")

    def _write(self, lines: Sequence[bytes]) -> None:
        if not lines:
            return
        now = time.time()
        texts = [masking.mask_text(_final_text(line), self._secrets) for line in lines]
        self.record = replace(self.record, lines=self.record.lines + len(texts), last_output=now)
        identity = {"time": round(now, 3), "node": self.record.node, "rank": self.record.rank}
        plain = "".join(f"{text}\n" for text in texts).encode()
        events = "".join(json.dumps({**identity, "text": text}, ensure_ascii=False) + "\n" for text in texts).encode("utf-8", "replace")
        problem = self.record.problem if not self._files else ""
        try:
            for file, content in zip(self._files, (plain, events)):  # noqa: B905 - strict= needs Python 3.10
                write_all(file.fileno(), content)
        except OSError as error:
            problem = str(error)
        if problem:
            self._dropped.extend(text[:_DROPPED_LINE_CHARACTERS] for text in texts)
            self.record = replace(self.record, problem=problem, dropped=self.record.dropped + len(texts))


def _final_text(line: bytes) -> str:
    """Return the text after the last carriage return: a progress bar overwrites its line."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


@dataclass
class _Signals:
    """The signals that have arrived, and a socket that becomes readable when one arrives."""

    pending: deque[int]
    wake_up: socket.socket

    @classmethod
    def install(cls) -> _Signals:
        """Install the signal handlers."""
        receiver, sender = socket.socketpair()
        for end in (receiver, sender):
            end.setblocking(False)  # noqa: FBT003 - the socket's own interface
        signals = cls(deque(), receiver)
        signal.set_wakeup_fd(sender.detach())
        for number in _FORWARDED:
            signal.signal(number, signals._record)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return signals

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self.pending.append(number)

    def clear_wake_up(self) -> None:
        with suppress(BlockingIOError):
            while self.wake_up.recv(4096):
                pass


class _Supervisor:
    """Runs one program."""

    def __init__(self, program: Sequence[str], environment: Mapping[str, str], output: Output, parent: int) -> None:
        self._program, self._environment, self._output, self._parent = list(program), environment, output, parent
        self._sent: set[int] = set()
        self._orphaned_at: float | None = None

    def run(self) -> int:
        signals = _Signals.install()
        reader, writer = os.pipe()
        pid = os.getpid()
        try:
            process = subprocess.Popen(
                self._program,
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env=dict(self._environment),
                preexec_fn=lambda: signal_on_parent_death(signal.SIGKILL, pid),  # noqa: PLW1509 - this process has one thread
            )
        except OSError as error:
            return self._not_started(error)
        finally:
            os.close(writer)
        self._output.record = replace(self._output.record, pid=process.pid)
        self._output.write_record()
        with selectors.DefaultSelector() as selector:
            selector.register(reader, selectors.EVENT_READ)
            selector.register(signals.wake_up, selectors.EVENT_READ)
            self._copy_until_end(process, selector, reader, signals)
        return self._ended(process.wait())

    def _copy_until_end(self, process: subprocess.Popen[bytes], selector: selectors.BaseSelector, reader: int, signals: _Signals) -> None:
        """Copy output and pass signals on until the program and its output have ended."""
        ended_at = None
        while True:
            timeout = 1.0 if ended_at is None else _SILENT_S
            ready = {key.fd for key, _ in selector.select(timeout)}
            signals.clear_wake_up()
            self._forward(process, signals)
            data = os.read(reader, _CHUNK_BYTES) if reader in ready else None
            if data:
                self._output.feed(data)
            elif data == b"":
                selector.unregister(reader)
                process.wait()
                return
            if ended_at is not None and (not data or time.monotonic() - ended_at > _DRAIN_S):
                return
            if ended_at is None and process.poll() is not None:
                ended_at = time.monotonic()

    def _forward(self, process: subprocess.Popen[bytes], signals: _Signals) -> None:
        while signals.pending:
            number = signals.pending.popleft()
            if number not in self._sent:
                self._sent.add(number)
                self._output.record = replace(self._output.record, stopped_at=self._output.record.stopped_at or time.time())
                process.send_signal(number)
        if os.getppid() != self._parent:
            self._orphaned_at = self._orphaned_at or time.monotonic()
            if time.monotonic() - self._orphaned_at > _ORPHAN_GRACE_S:
                process.kill()

    def _not_started(self, error: OSError) -> int:
        name = self._program[0]
        self._output.feed(f"rank: {name} cannot be started: {error.strerror}\n  fix: check that it exists, and chmod +x {name}\n".encode())
        code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
        self._output.finish(ended=time.time(), exit_code=code)
        return code

    def _ended(self, status: int) -> int:
        number = -status if status < 0 else 0
        code = 128 + number if number else status
        self._output.finish(ended=time.time(), exit_code=code, signal=number)
        return code
