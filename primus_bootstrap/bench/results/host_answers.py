"""What a host reports during a bench: its facts, and the output of its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.bench.name_list import first_names
from primus_bootstrap.bench.quarantine.decisions import QuarantineRecord
from primus_bootstrap.bench.results.history import Fingerprint
from primus_bootstrap.core.structured import read, readable

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_JOBS = 4


@readable
@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output of one step."""

    name: str  # the program
    code: int  # exit code
    error: str  # why the step gave no answer, such as a time limit; empty otherwise
    stdout: str  # end of the output
    stderr: str  # end of the error output
    results: tuple[str, ...]  # result lines
    started: float  # by the host's clock (seconds since the epoch)
    seconds: float  # duration
    jobs: tuple[str, ...]  # jobs that ran on the host beside the step

    @property
    def printed(self) -> str:
        """The error output; without one, the output."""
        return self.stderr or self.stdout

    def last_words(self, max_chars: int) -> str:
        """Return the end of the output in one line."""
        return " ".join(self.printed[-max_chars:].split())

    def jobs_text(self) -> str:
        """Return the first jobs, and the number of the others."""
        return first_names(self.jobs, _MAX_JOBS)


@readable
@dataclass(frozen=True, slots=True)
class StepRound:
    """The steps of one round."""

    now: float  # the host's clock after them (seconds since the epoch)
    steps: tuple[StepOutput, ...]


@readable
@dataclass(frozen=True, slots=True)
class BenchFacts:
    """What a host reports before it is measured."""

    now: float  # the host's clock (seconds since the epoch)
    fingerprint: Fingerprint  # software versions
    due: str = ""  # why a bench is due; empty if none is
    record: QuarantineRecord | None = None  # its quarantine record
    gpus: int = 0  # number of GPUs


@readable
@dataclass(frozen=True, slots=True)
class HostAnswers:
    """Everything that a host reported so far."""

    facts: BenchFacts | None = None  # None if the host was lost before it reported anything
    requested: bool = False  # whether steps were sent to the host
    rounds: tuple[StepRound, ...] = ()

    @property
    def steps(self) -> tuple[StepOutput, ...]:
        """The steps of all rounds."""
        return tuple(step for round_ in self.rounds for step in round_.steps)

    @property
    def now(self) -> float:
        """The host's clock at its last answer."""
        return self.rounds[-1].now if self.rounds else self.facts.now if self.facts else 0.0


def parse_answers(host: str, data: Mapping[str, Any]) -> HostAnswers:
    """Read a host's file of the store. In it, a quarantine record names the host whose clock gave its time."""
    facts, record = data.get("facts"), (data.get("facts") or {}).get("record")
    if facts:
        facts = {**facts, "record": {**record, "own_clock": record.get("clock", host) == host} if record else None}
    return read(HostAnswers, {**data, "facts": facts or None}, ignore_unknown=True)
