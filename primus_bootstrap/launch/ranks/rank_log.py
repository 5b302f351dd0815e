"""Name and read the files of one rank below `logs/`.

`rank-00000.log` is the output as text, `rank-00000.jsonl` the output with the time of each line, `rank-00000.json` the exit record.
A second run in the same folder appends; the record's offsets are the positions at which the newest run starts.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "primus.rank/1"
UNFINISHED = 75  # sysexits.h EX_TEMPFAIL: the program stopped early with a complete checkpoint
SIGTERM, SIGKILL = 15, 9
ENDED_FROM_OUTSIDE = frozenset({1, 2, SIGKILL, SIGTERM})  # SIGHUP, SIGINT: no program sends these to itself
# The ranks of one run start within the time of a rendezvous, and the clocks of a cluster differ by less. An older record is from an earlier
# run in the same folder.
_SAME_START_S = 300.0
_FOLDER = "logs"


@dataclass(frozen=True)
class RankRecord:
    """The start and end of one rank. Times are seconds since the epoch."""

    node: str
    rank: int
    world_size: int
    local_rank: int
    attempt: int  # the number of restarts by torchrun
    pid: int  # the pid of the program
    started: float
    ended: float | None = None  # None while it runs, or if its node failed
    exit_code: int | None = None  # None like `ended`; 128 + n if signal n ended the program
    signal: int = 0  # the signal that ended the program, 0 if none did
    stopped_at: float | None = None  # when it received SIGTERM or SIGINT; None if it did not
    last_output: float | None = None
    lines: int = 0
    log_offset: int = 0
    events_offset: int = 0
    problem: str = ""
    dropped: int = 0  # the number of lines that could not be written because of `problem`
    last_lines: tuple[str, ...] = ()  # the last dropped lines
    schema: str = SCHEMA

    @property
    def failed(self) -> bool:
        """Whether it ended with an exit code other than 0 and 75."""
        return self.exit_code not in (None, 0, UNFINISHED)

    @property
    def ended_by_others(self) -> bool:
        """Whether it was asked to stop and was then ended by SIGTERM or SIGKILL."""
        return self.stopped_at is not None and self.signal in (SIGTERM, SIGKILL)


@dataclass(frozen=True)
class Line:
    """One line of output; `number` counts from 1 within the newest run, `time` is None if the log has no times."""

    text: str
    number: int
    time: float | None = None


def log_path(run_dir: Path, rank: int) -> Path:
    """Return the file with the output of a rank."""
    return run_dir / _FOLDER / f"rank-{rank:05d}.log"


def events_path(run_dir: Path, rank: int) -> Path:
    """Return the file with the output of a rank as JSON, one object per line."""
    return run_dir / _FOLDER / f"rank-{rank:05d}.jsonl"


def record_path(run_dir: Path, rank: int) -> Path:
    """Return the file with the exit record of a rank."""
    return run_dir / _FOLDER / f"rank-{rank:05d}.json"


def launcher_path(run_dir: Path, node_rank: int) -> Path:
    """Return the file with the terminal output and torchrun's output on a node."""
    return run_dir / _FOLDER / f"launcher-{node_rank:05d}.log"


def kernel_path(run_dir: Path, node_rank: int) -> Path:
    """Return the file with the kernel messages of a node during the run."""
    return run_dir / _FOLDER / f"kernel-{node_rank:05d}.json"


def parse_record(text: str) -> RankRecord | None:
    """Parse a record; return None if it is incomplete or has another schema."""
    try:
        data = json.loads(text)
        names = {field.name for field in fields(RankRecord)}
        record = RankRecord(**{name: value for name, value in data.items() if name in names})
    except (ValueError, TypeError, AttributeError):
        return None
    return None if record.schema != SCHEMA else RankRecord(**{**asdict(record), "last_lines": tuple(record.last_lines)})


def read_records(run_dir: Path) -> tuple[RankRecord, ...]:
    """Return the records of the newest run in a run folder, by rank."""
    found: list[RankRecord] = []
    for path in sorted((run_dir / _FOLDER).glob("rank-*.json")):
        with suppress(OSError):
            record = parse_record(path.read_text("utf-8", "replace"))
            if record:
                found.append(record)
    if not found:
        return ()
    newest = max(found, key=lambda record: record.started)
    return tuple(record for record in found if record.rank < newest.world_size and record.started >= newest.started - _SAME_START_S)


def first_failure_code(run_dir: Path, node: str, since: float = 0.0) -> int | None:
    """Return the exit code of the rank of a node that failed first; None if no rank had a code other than 0.

    Ranks that failed by themselves take precedence over ranks that exited with 75, and those over ranks that were asked to stop.

    Args:
        since: Ignore ranks started before this time (seconds since the epoch, by this node's clock).
    """
    ended = [record for record in read_records(run_dir) if record.node == node and record.exit_code and record.started >= since]
    failed = [record for record in ended if record.failed]
    unprompted = [record for record in failed if not record.ended_by_others]
    unfinished = [record for record in ended if not record.failed]
    for group in (unprompted, unfinished, failed):
        if group:
            return min(group, key=lambda record: record.ended or 0.0).exit_code
    return None


def read_lines(run_dir: Path, record: RankRecord, *, limit_bytes: int) -> tuple[Line, ...]:
    """Return the last lines of a rank in its newest run, with times if available; read at most `limit_bytes` from the end of the file."""
    lines = _tail(events_path(run_dir, record.rank), record.events_offset, limit_bytes)
    found = [line for number, text in lines if (line := _event(text, number))]
    if not found:
        found = [Line(text, number) for number, text in _tail(log_path(run_dir, record.rank), record.log_offset, limit_bytes)]
    last = found[-1].number if found else 0
    dropped = [Line(text, last + index, record.last_output) for index, text in enumerate(record.last_lines, 1)]
    return (*found, *dropped)


def read_plain(path: Path, *, limit_bytes: int) -> tuple[Line, ...]:
    """Return the last lines of a text log; none if it cannot be read."""
    return tuple(Line(text, number) for number, text in _tail(path, 0, limit_bytes))


def _event(text: str, number: int) -> Line | None:
    try:
        data = json.loads(text)
        return Line(str(data["text"]), number, float(data["time"]))
    except (ValueError, TypeError, KeyError):
        return None  # a line truncated by a full disk


def _tail(path: Path, offset: int, limit_bytes: int) -> list[tuple[int, str]]:
    """Return (number, text) of the complete lines after an offset, at most the last `limit_bytes`; numbers count from the offset."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            offset = offset if offset <= size else 0
            start = max(offset, size - limit_bytes)
            number = 1 + _count_lines(file, offset, start)
            file.seek(start)
            content = file.read()
    except OSError:
        return []
    lines = content.decode("utf-8", "replace").splitlines()
    if start > offset and lines:
        lines, number = lines[1:], number + 1  # the first line is incomplete
    return list(enumerate(lines, number))


def _count_lines(file: Any, first: int, last: int) -> int:
    file.seek(first)
    count = 0
    while first < last:
        chunk = file.read(min(1 << 20, last - first))
        if not chunk:
            break
        count += chunk.count(b"\n")
        first += len(chunk)
    return count
