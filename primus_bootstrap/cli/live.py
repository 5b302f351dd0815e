"""Shows the progress of a run: on a terminal a table that is redrawn, elsewhere lines at each phase and every 30 s."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from primus_bootstrap.cli.console import count, duration_text, say, stderr
from primus_bootstrap.engine.estimates import Estimate
from primus_bootstrap.engine.events import HostPinned, HostResult, PhaseFinished, PhaseStarted, Preparing, RunFinished, TaskStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from rich.console import RenderableType

    from primus_bootstrap.engine.events import Event
    from primus_bootstrap.engine.plan_values import Plan

_REDRAWS_PER_S = 4
# Without a terminal: how often a line says what a long phase does.
_LINE_EVERY_S = 30.0
_TICK_S = 1.0


def _first_line(message: str) -> str:
    return message.splitlines()[0] if message else "no error message"


@dataclass(slots=True)
class PhaseState:
    """The progress of one phase.

    `seconds` is set when the phase has ended, `estimate` has what earlier runs took. `lost_before` counts the hosts that earlier
    phases lost. If Ansible aborts a phase, the remaining hosts may continue it in a second process; `spent_s` is the time of the
    first one. `tasks` counts the tasks that were started, `changes` the changes on all hosts; `answered` are the hosts that have
    ended the current task.
    """

    name: str
    members: frozenset[str]
    estimate: Estimate = field(default_factory=Estimate)
    started: float = 0.0
    lost_before: int = 0
    spent_s: float = 0.0
    seconds: float | None = None
    aborted: bool = False
    task: str = ""
    tasks: int = 0
    changes: int = 0
    answered: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    unreachable: set[str] = field(default_factory=set)

    @property
    def hosts(self) -> int:
        """The number of hosts in the plan."""
        return len(self.members)

    @property
    def estimate_s(self) -> float | None:
        """The expected duration."""
        return self.estimate.expected_s

    @property
    def lost(self) -> int:
        """The number of hosts that failed or were unreachable in this phase."""
        return len(self.failed | self.unreachable)

    def summary(self) -> str:
        """Return the numbers of hosts that finished, changed, failed or were unreachable."""
        parts = ["not finished" if self.aborted else f"{self.hosts - self.lost_before - self.lost} of {self.hosts} done"]
        counts = ((self.changed, "changed"), (self.failed, "failed"), (self.unreachable, "unreachable"))
        parts += [f"{len(names)} {word}" for names, word in counts if names]
        parts += [f"{self.lost_before} lost earlier"] if self.lost_before else []
        return ", ".join(parts)

    def task_text(self) -> str:
        """Return the current task, its number, and on how many of the phase's hosts it has ended."""
        # Hosts that the current task lost have a result; hosts that were lost earlier do not run it.
        expected = self.hosts - self.lost_before - self.lost + len(self.answered & (self.failed | self.unreachable))
        lost = f" · {self.lost} lost" if self.lost else ""
        return f"task {self.tasks} · {len(self.answered)} of {count(expected, 'host')}{lost} · {self.task}"


class LiveView:
    """A context manager that shows the progress of one run.

    `estimates` are the estimates of each phase. Once a phase changes more or less than expected, those of the later phases follow.
    """

    def __init__(self, verb: str, plan: Plan, estimates: Mapping[str, Estimate], *, clock: Callable[[], float] = time.time) -> None:
        """Prepare the view; entering the context draws it."""
        self._title = f"{verb} {plan.cluster}"
        self._hosts = len(plan.hosts)
        self._phases = {
            step.phase: PhaseState(step.phase, frozenset(step.hosts), estimates.get(step.phase, Estimate())) for step in plan.steps
        }
        self._current: PhaseState | None = None
        self._lost: set[str] = set()
        self._clock = clock
        self._started = clock()
        self._live: Live | None = None
        self._unprinted: PhaseState | None = None  # it ended, but another process may continue it
        self._ended = False
        self._preparing = ""
        self._printed_at = self._started
        self._lock = threading.RLock()  # lines come from events and from the timer
        self._stopped = threading.Event()
        self._timer: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Start the table on a terminal, or print the first line."""
        if sys.stderr.isatty():
            self._live = Live(get_renderable=self.render, console=stderr(), refresh_per_second=_REDRAWS_PER_S, transient=False)
            self._live.start()
        else:
            self._say(f"{self._title}: {count(len(self._phases), 'phase')} on {count(self._hosts, 'host')}{self._left_text()}")
            self._timer = threading.Thread(target=self._run_timer, daemon=True)
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        """Draw the final state."""
        self._stopped.set()
        if self._timer:
            self._timer.join()
        self._print_finished()
        if self._live:
            self._live.refresh()
            self._live.stop()

    def handle(self, event: Event) -> None:
        """Update the view with one event."""
        with self._lock:
            self._handle(event)

    def tick(self) -> None:
        """Without a terminal, print what the run does if nothing was printed for 30 s."""
        with self._lock:
            if self._live or self._ended or self._clock() - self._printed_at < _LINE_EVERY_S:
                return
            if phase := self._current:
                self._say(f"{self._number(phase)} {phase.name}, {duration_text(self._clock() - phase.started)}: {phase.task_text()}")
            elif self._preparing:
                self._say(f"{self._preparing}, {duration_text(self._clock() - self._started)} since the begin")

    def _run_timer(self) -> None:
        while not self._stopped.wait(_TICK_S):
            self.tick()

    def _handle(self, event: Event) -> None:
        match event:
            case Preparing():
                self._preparing = event.what
                if not self._live:
                    self._say(event.what)
            case HostPinned():
                key = f"{event.key_type} {event.fingerprint}"
                self._line(f"pinned the host key of {event.host} ({event.address}) from {event.source}: {key}")
            case PhaseStarted():
                self._started_phase(self._phases[event.phase], event.at)
            case TaskStarted() if self._current:
                self._current.task = f"{event.task} ({event.role})" if event.role else event.task
                self._current.tasks += 1
                self._current.answered.clear()
            case HostResult() if self._current:
                self._result(self._current, event)
            case PhaseFinished():
                self._finished(self._phases[event.phase], event)
            case RunFinished():
                self._ended = True
                self._print_finished()
                if event.problem:
                    self._line(event.problem)
            case _:
                pass

    def _started_phase(self, phase: PhaseState, at: float) -> None:
        if phase is self._unprinted:
            self._unprinted = None
        self._print_finished()
        phase.started = at - phase.spent_s
        phase.seconds, phase.aborted = None, False
        phase.lost_before = len((self._lost - phase.failed - phase.unreachable) & phase.members)
        self._current, self._preparing = phase, ""
        if not self._live:
            lost = f", {phase.lost_before} lost earlier" if phase.lost_before else ""
            estimate = f", about {duration_text(phase.estimate_s)}" if phase.estimate_s else ""
            again = "continues" if phase.spent_s else "started"
            hosts = count(phase.hosts - phase.lost_before - phase.lost, "host")
            self._say(f"{self._number(phase)} {phase.name} {again} on {hosts}{lost}{estimate}")

    def _number(self, phase: PhaseState) -> str:
        return f"[{list(self._phases).index(phase.name) + 1}/{len(self._phases)}]"

    def _say(self, text: str) -> None:
        say(text)
        self._printed_at = self._clock()

    def _result(self, phase: PhaseState, event: HostResult) -> None:
        phase.answered.add(event.host)
        if event.status == "changed":
            phase.changed.add(event.host)
            phase.changes += 1
        elif event.status in ("failed", "unreachable"):
            (phase.failed if event.status == "failed" else phase.unreachable).add(event.host)
            self._lost.add(event.host)
            self._line(f"{event.host} {event.status}: {event.task}: {_first_line(event.message)}")
        elif event.status == "ignored":
            self._line(f"{event.host} ignored: {event.task}: {_first_line(event.message)}")

    def _finished(self, phase: PhaseState, event: PhaseFinished) -> None:
        phase.seconds = event.seconds + phase.spent_s
        phase.spent_s = phase.seconds
        phase.aborted = event.aborted
        if self._current is phase:
            self._current = None
        self._unprinted = phase
        if not phase.aborted:
            self._follow_changes(phase)
            self._print_finished()

    def _follow_changes(self, phase: PhaseState) -> None:
        """Expect that later phases install or repeat as this one did; a phase that never changes anything says nothing."""
        if not phase.estimate.changes:
            return
        installs = phase.estimate.is_installing(phase.changes / max(phase.hosts, 1))
        for other in self._phases.values():
            if other.seconds is None:
                other.estimate = replace(other.estimate, installs=installs)

    def _print_finished(self) -> None:
        """Print the line of the phase that ended, unless the table shows it."""
        phase, self._unprinted = self._unprinted, None
        if phase and not self._live:
            self._say(f"{self._number(phase)} {phase.name}: {phase.summary()}, {duration_text(phase.seconds or 0.0)}")

    def _line(self, text: str) -> None:
        """Print a line above the table, or to stderr."""
        if self._live:
            self._live.console.print(Text(text, style="bold"))
        else:
            self._say(text)

    def _left_text(self) -> str:
        """Return the estimated remaining time, or an empty string if a phase has no earlier run."""
        if self._ended:
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
        """Return the table with the current state of the run."""
        number = sum(1 for phase in self._phases.values() if phase.started)
        lost = f" · {len(self._lost)} of {self._hosts} hosts lost" if self._lost else f" · {count(self._hosts, 'host')}"
        elapsed = duration_text(self._clock() - self._started)
        step = f" · phase {number} of {len(self._phases)}" if number else ""
        step += f" · {self._preparing}" if self._preparing and not self._ended else ""
        head = Text(f"{self._title}{step}{lost} · {elapsed}{self._left_text()}", style="bold")
        table = Table.grid(padding=(0, 2))
        for phase in self._phases.values():
            table.add_row(*self._row(phase))
        return Group(head, table)

    def _row(self, phase: PhaseState) -> tuple[RenderableType, ...]:
        if phase.seconds is not None:
            mark, style = ("✗", "red") if phase.lost or phase.aborted else ("✓", "yellow" if phase.lost_before else "green")
            return Text(f"  {mark}", style=style), phase.name, Text(phase.summary()), Text(duration_text(phase.seconds), style="dim")
        if not phase.started:
            estimate = "not run" if self._ended else f"about {duration_text(phase.estimate_s)}" if phase.estimate_s else ""
            return Text("   "), Text(phase.name, style="dim"), Text(count(phase.hosts, "host"), style="dim"), Text(estimate, style="dim")
        spent_s = self._clock() - phase.started
        usual = f" of about {duration_text(phase.estimate_s)}" if phase.estimate_s and spent_s < phase.estimate_s else ""
        spent = Text(f"{duration_text(spent_s)}{usual}", style="dim")
        return Text("  ▸", style="cyan"), phase.name, Text(phase.task_text() if phase.task else "started"), spent
