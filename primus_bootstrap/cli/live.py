"""The live view of a run: on a terminal a picture that is redrawn, elsewhere one line a phase. It tells only what events told it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from primus_bootstrap.cli.console import say, stderr
from primus_bootstrap.engine.events import HostPinned, HostResult, PhaseFinished, PhaseStarted, RunFinished, TaskStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from rich.console import RenderableType

    from primus_bootstrap.engine.events import Event
    from primus_bootstrap.engine.plan_values import Plan

_REDRAWS_PER_S = 4


def duration_text(seconds: float) -> str:
    """Return `12s`, `3m05s` or `2h04m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def _first_line(message: str) -> str:
    return message.splitlines()[0] if message else "no cause given"


def count(number: int, noun: str) -> str:
    """Return `1 host` or `3 hosts`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


@dataclass(slots=True)
class PhaseState:
    """What is known of one phase.

    `seconds` is set when it has ended, `estimate_s` where earlier runs give one. `gone` counts the hosts that an earlier
    phase lost, and that this one therefore does not touch. A phase that Ansible gave up may go on in a second process, with the
    hosts that are left: it is one phase all the same.
    """

    name: str
    members: frozenset[str]
    estimate_s: float | None = None
    started: float = 0.0
    gone: int = 0
    spent_s: float = 0.0
    seconds: float | None = None
    aborted: bool = False
    task: str = ""
    answered: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)

    @property
    def hosts(self) -> int:
        """How many hosts the plan has in it."""
        return len(self.members)

    @property
    def lost(self) -> int:
        """Hosts that this phase gave up."""
        return len(self.failed | self.unreachable)

    def summary(self) -> str:
        """Say how many hosts got there, changed, failed, or did not answer."""
        parts = ["not finished" if self.aborted else f"{self.hosts - self.gone - self.lost} of {self.hosts} done"]
        parts += [f"{len(names)} {word}" for names, word in self._counts() if names]
        parts += [f"{self.gone} lost before"] if self.gone else []
        return ", ".join(parts)

    def _counts(self) -> tuple[tuple[set[str], str], ...]:
        return ((self.changed, "changed"), (self.failed, "failed"), (self.unreachable, "unreachable"))


class LiveView:
    """Follows one run; used as a context manager around it.

    Args of the constructor: the verb, the plan, and the seconds that earlier runs of each phase took, where known.
    """

    def __init__(self, verb: str, plan: Plan, estimates: Mapping[str, float], *, clock: Callable[[], float] = time.time) -> None:
        """Prepare the picture; nothing is drawn before the context is entered."""
        self._title = f"{verb} {plan.cluster}"
        self._hosts = len(plan.hosts)
        self._phases = {step.phase: PhaseState(step.phase, frozenset(step.hosts), estimates.get(step.phase)) for step in plan.steps}
        self._current: PhaseState | None = None
        self._lost: set[str] = set()
        self._clock = clock
        self._started = clock()
        self._live: Live | None = None
        self._unsaid: PhaseState | None = None  # given up by Ansible: another process may still take it up
        self._over = False

    def __enter__(self) -> Self:
        """Start drawing where there is a terminal."""
        if sys.stderr.isatty():
            self._live = Live(get_renderable=self.render, console=stderr(), refresh_per_second=_REDRAWS_PER_S, transient=False)
            self._live.start()
        else:
            say(f"{self._title}: {count(len(self._phases), 'phase')} on {count(self._hosts, 'host')}{self._left_text()}")
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Leave the last picture on the screen."""
        self._say_unsaid()
        if self._live:
            self._live.refresh()
            self._live.stop()

    def handle(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case HostPinned():
                self._line(f"host key of {event.host} ({event.address}) pinned, {event.source}: {event.key_type} {event.fingerprint}")
            case PhaseStarted():
                self._started_phase(self._phases[event.phase], event.at)
            case TaskStarted() if self._current:
                self._current.task = f"{event.task} ({event.role})" if event.role else event.task
                self._current.answered.clear()
            case HostResult() if self._current:
                self._result(self._current, event)
            case PhaseFinished():
                self._finished(self._phases[event.phase], event)
            case RunFinished():
                self._over = True
                self._say_unsaid()
                if event.problem:
                    self._line(event.problem)
            case _:
                pass

    def _started_phase(self, phase: PhaseState, at: float) -> None:
        if phase is self._unsaid:
            self._unsaid = None
        self._say_unsaid()
        phase.started = at - phase.spent_s
        phase.seconds, phase.aborted = None, False
        phase.gone = len((self._lost - phase.failed - phase.unreachable) & phase.members)
        self._current = phase

    def _result(self, phase: PhaseState, event: HostResult) -> None:
        phase.answered.add(event.host)
        if event.status == "changed":
            phase.changed.add(event.host)
        elif event.status in ("failed", "unreachable"):
            (phase.failed if event.status == "failed" else phase.unreachable).add(event.host)
            self._lost.add(event.host)
            self._line(f"{event.host} {event.status}: {event.task}: {_first_line(event.message)}")
        elif event.status == "ignored":
            self._line(f"{event.host} left out: {event.task}: {_first_line(event.message)}")

    def _finished(self, phase: PhaseState, event: PhaseFinished) -> None:
        phase.seconds = event.seconds + phase.spent_s
        phase.spent_s = phase.seconds
        phase.aborted = event.aborted
        if self._current is phase:
            self._current = None
        self._unsaid = phase
        if not phase.aborted:
            self._say_unsaid()

    def _say_unsaid(self) -> None:
        phase, self._unsaid = self._unsaid, None
        if phase and not self._live:
            number = list(self._phases).index(phase.name) + 1
            say(f"[{number}/{len(self._phases)}] {phase.name}: {phase.summary()}, {duration_text(phase.seconds or 0.0)}")

    def _line(self, text: str) -> None:
        """Say something that stays on the screen."""
        if self._live:
            self._live.console.print(Text(text, style="bold"))
        else:
            say(text)

    def _left_text(self) -> str:
        """Estimate the seconds to go from what earlier runs took; empty where a phase has no earlier run."""
        if self._over:
            return ""
        left = 0.0
        for phase in self._phases.values():
            if phase.seconds is not None:
                continue
            if phase.estimate_s is None:
                return ""
            spent = self._clock() - phase.started if phase.started else 0.0
            left += max(phase.estimate_s - spent, 0.0)
        return f", about {duration_text(left)} left" if left >= 1 else ""

    def render(self) -> RenderableType:
        """Draw the run as it stands."""
        number = sum(1 for phase in self._phases.values() if phase.started)
        lost = f" · {len(self._lost)} of {self._hosts} hosts lost" if self._lost else f" · {count(self._hosts, 'host')}"
        elapsed = duration_text(self._clock() - self._started)
        head = Text(f"{self._title} · phase {number} of {len(self._phases)}{lost} · {elapsed}{self._left_text()}", style="bold")
        table = Table.grid(padding=(0, 2))
        for phase in self._phases.values():
            table.add_row(*self._row(phase))
        return Group(head, table)

    def _row(self, phase: PhaseState) -> tuple[RenderableType, ...]:
        if phase.seconds is not None:
            mark, style = ("✗", "red") if phase.lost or phase.aborted else ("✓", "yellow" if phase.gone else "green")
            return Text(f"  {mark}", style=style), phase.name, Text(phase.summary()), Text(duration_text(phase.seconds), style="dim")
        if not phase.started:
            estimate = "not run" if self._over else f"about {duration_text(phase.estimate_s)}" if phase.estimate_s else ""
            return Text("   "), Text(phase.name, style="dim"), Text(count(phase.hosts, "host"), style="dim"), Text(estimate, style="dim")
        # Those that this very task lost have answered it; those lost before it are not asked.
        asked = phase.hosts - phase.gone - phase.lost + len(phase.answered & (phase.failed | phase.unreachable))
        answered = f"{len(phase.answered)}/{asked} hosts"
        lost = f" · {phase.lost} lost" if phase.lost else ""
        spent = duration_text(self._clock() - phase.started)
        return Text("  ▸", style="cyan"), phase.name, Text(f"{answered}{lost} · {phase.task}"), Text(spent, style="dim")
