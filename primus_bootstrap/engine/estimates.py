"""Estimates the durations of phases from earlier runs that changed about as much."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING

from primus_bootstrap.engine.history import KEPT_RUNS, UNREADABLE, list_runs, planned_hosts
from primus_bootstrap.engine.report import PhaseReport

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from primus_bootstrap.engine.plan_values import Step
    from primus_bootstrap.engine.state_folder import RunFolder

_ESTIMATE_RUNS = 5
# Verbs, or their first words, that install services on hosts.
_CONFIGURING = ("apply", "node add ", "node replace ")
_HEAD_CHARS = 1000  # the verb is in this part of a report
# A run that makes at least this share of the most changes of a phase installs it; one with fewer repeats it.
_INSTALLING_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a phase: if it installs, and if it repeats what is installed; None without such a run.

    `installs` says which of them is expected. `changes` are the most changes per host of any run of the phase.
    """

    installing_s: float | None = None
    repeating_s: float | None = None
    installs: bool = False
    changes: float = 0.0

    @property
    def expected_s(self) -> float | None:
        """The expected duration; None if no earlier run changed about as much."""
        return self.installing_s if self.installs else self.repeating_s

    def is_installing(self, changes: float) -> bool:
        """Return whether so many changes per host are about as many as those of an installation."""
        return changes > 0 and changes >= _INSTALLING_SHARE * self.changes


@dataclass(frozen=True, slots=True)
class _Sample:
    """One phase in one run: its duration, and the changes per host."""

    seconds: float
    hosts: int
    changes: float


@dataclass(frozen=True, slots=True)
class _Run:
    """What an estimate reads of a report: the phases, the changes in each, and the phases in which each host failed."""

    verb: str
    phases: tuple[PhaseReport, ...]
    changes: dict[str, int]
    failures: dict[str, frozenset[str]]


def estimate_phases(state_dir: Path, steps: Sequence[Step], *, verb: str = "apply") -> dict[str, Estimate]:
    """Return the estimate of each step.

    A step installs if one of its hosts has not completed the phase before. Runs with as many hosts take precedence.
    """
    samples: dict[str, list[_Sample]] = {}
    completed: set[tuple[str, str]] = set()
    for folder in list_runs(state_dir):
        run = _read_run(folder.report, verb) if folder.report.is_file() else None
        if run is None:
            continue
        if run.verb.startswith(_CONFIGURING):
            completed |= set(_completed(run, folder))
        for phase in run.phases if run.verb == verb else ():
            if phase.state == "done":
                sample = _Sample(phase.seconds, phase.hosts, run.changes.get(phase.phase, 0) / max(phase.hosts, 1))
                samples.setdefault(phase.phase, []).append(sample)
    return {step.phase: _estimate(step, samples.get(step.phase, []), completed) for step in steps}


def _estimate(step: Step, samples: list[_Sample], completed: set[tuple[str, str]]) -> Estimate:
    installs = any((step.phase, host) not in completed for host in step.hosts)
    most = max((sample.changes for sample in samples), default=0.0)
    if not most:  # a phase that only checks takes as long either way
        seconds = _median(samples, len(step.hosts))
        return Estimate(seconds, seconds, installs=installs)
    whole = Estimate(changes=most)
    installing = [sample for sample in samples if whole.is_installing(sample.changes)]
    repeating = [sample for sample in samples if not whole.is_installing(sample.changes)]
    return replace(
        whole, installing_s=_median(installing, len(step.hosts)), repeating_s=_median(repeating, len(step.hosts)), installs=installs
    )


def _median(samples: list[_Sample], hosts: int) -> float | None:
    """Return the median of the newest samples, if possible of those with as many hosts."""
    same_size = [sample for sample in samples if sample.hosts == hosts]
    newest = (same_size or samples)[:_ESTIMATE_RUNS]
    return median(sample.seconds for sample in newest) if newest else None


def _completed(run: _Run, folder: RunFolder) -> Iterator[tuple[str, str]]:
    """Yield each (phase, host) that a run completed."""
    hosts_of = planned_hosts(folder)
    lost: set[str] = set()
    for phase in run.phases:
        lost |= run.failures.get(phase.phase, frozenset())
        if phase.state == "done":
            yield from ((phase.phase, host) for host in hosts_of.get(phase.phase, ()) if host not in lost)


@lru_cache(maxsize=KEPT_RUNS)
def _read_run(report: Path, verb: str) -> _Run | None:
    """Return what a report says; None if its verb configures nothing or it is damaged. Reports never change, hence the cache."""
    try:
        with report.open(encoding="utf-8") as file:
            head = file.read(_HEAD_CHARS)
        if not any(f'"verb": {json.dumps(word, ensure_ascii=False)[:-1]}' in head for word in (verb, *_CONFIGURING)):
            return None  # another verb; parsing the report of a large cluster takes long
        data = json.loads(report.read_text(encoding="utf-8"))
        changes: Counter[str] = Counter()
        for change in data["changes"]:
            changes[change["phase"]] += int(change["hosts"])
        failures: dict[str, set[str]] = {}
        for host in data["hosts"]:
            for failure in host["failures"]:
                failures.setdefault(failure["phase"], set()).add(host["host"])
        phases = tuple(PhaseReport(**{**phase, "seconds": float(phase["seconds"])}) for phase in data["phases"])
        return _Run(data["verb"], phases, dict(changes), {phase: frozenset(hosts) for phase, hosts in failures.items()})
    except UNREADABLE:
        return None
