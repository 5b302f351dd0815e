"""Translates the raw events of ansible-runner into events of the engine."""

from __future__ import annotations

import difflib
import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.verdicts import Verdict, parse_verdict
from primus_bootstrap.engine.causes import cause_of
from primus_bootstrap.engine.events import (
    Event,
    HostResult,
    PhaseFinished,
    PhaseStarted,
    Recap,
    Status,
    TaskStarted,
    VerdictFound,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from primus_bootstrap.engine.plan_values import Step
    from primus_bootstrap.engine.playbooks import Play

_DIFF_CHARS = 4000
# Ansible sets one of these keys if it skips the difference of a large or binary file.
_SKIPPED_DIFFS = ("src_larger", "src_binary", "dst_larger", "dst_binary")
_IGNORING = "\n...ignoring"
_RESULTS: dict[str, Status] = {
    "runner_on_ok": "ok",
    "runner_on_failed": "failed",
    "runner_on_unreachable": "unreachable",
    "runner_on_skipped": "skipped",
}


@dataclass(slots=True)
class Translator:
    """Translates the events of one Ansible process.

    Ansible's events do not name the playbook of a play, so plays are counted: `plays` are the plays of each step's playbook.
    A play in batches (`serial`) starts once per batch, with the same identity.

    `steps` are the steps of the process, each with its number in the whole plan of `count` steps. Events of a nested Ansible
    (Kubespray's) have `foreign` set. They belong to the current phase, and the hosts that it lost are lost for the process.
    """

    steps: Sequence[tuple[int, Step]]
    plays: Sequence[Sequence[Play]]
    count: int
    clock: Callable[[], float] = time.time
    ended: bool = False
    _order: list[tuple[int, Play]] = field(default_factory=list)
    _started_plays: set[str] = field(default_factory=set)
    _failed_in_play: set[str] = field(default_factory=set)
    _changed_items: set[str] = field(default_factory=set)
    _step: int = -1
    _started: float = 0.0
    _counts: dict[str, list[int]] = field(default_factory=dict)
    _aborted: bool = False
    _stopped: bool = False
    _foreign_failed: dict[str, None] = field(default_factory=dict)
    _foreign_dark: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """List the plays in the order in which Ansible starts them."""
        self._order = [(index, play) for index, plays in enumerate(self.plays) for play in plays]

    def read(self, raw: Mapping[str, Any]) -> Iterator[Event]:
        """Yield the events for one raw event; most raw events are ignored."""
        kind = raw.get("event", "")
        data = raw.get("event_data") or {}
        if raw.get("foreign") and kind == "playbook_on_stats":
            self._foreign_failed |= dict.fromkeys(data.get("failures") or ())
            self._foreign_dark |= dict.fromkeys(data.get("dark") or ())
        elif kind == "playbook_on_play_start":
            yield from self._play(str(data.get("uuid", "")))
        elif kind == "playbook_on_task_start":
            yield TaskStarted(self._phase, data.get("role", ""), _task_name(data), self.clock())
        elif kind in _RESULTS:
            yield from self._result(_RESULTS[kind], data, str(raw.get("stdout") or ""))
        elif kind == "runner_item_on_ok" and _is_changed_line(raw.get("stdout")):
            self._changed_items.add(str(data.get("host", "")))
        elif kind == "playbook_on_no_hosts_remaining":
            self._aborted = True
        elif kind == "playbook_on_stats":
            failed = dict.fromkeys((*(data.get("failures") or ()), *self._foreign_failed))
            dark = dict.fromkeys((*(data.get("dark") or ()), *self._foreign_dark))
            recap = Recap(failed=tuple(failed), unreachable=tuple(dark))
            self.ended = True
            self._aborted = self._aborted or self._stopped_silently({*recap.failed, *recap.unreachable})
            yield from self._finish()
            yield recap

    def abandon(self) -> Iterator[Event]:
        """Finish the current phase, if any, as aborted."""
        if self._started:
            self._aborted = True
            yield from self._finish()

    @property
    def stopped_at(self) -> tuple[int, bool] | None:
        """The number of the step that Ansible aborted, and whether its play stops all hosts; None after a complete run."""
        if not self.ended or not self._stopped:
            return None
        index, play = self._current
        return self.steps[index][0], play.stops_all

    @property
    def _current(self) -> tuple[int, Play]:
        """The current play with the index of its step; the last play if a playbook has gained plays since the plan was made."""
        return self._order[min(max(len(self._started_plays), 1), len(self._order)) - 1]

    def _stopped_silently(self, lost: set[str]) -> bool:
        """Return whether Ansible stopped early without an event for it.

        It skips later plays if all hosts of a play failed, and the rest of a play with any_errors_fatal.
        """
        return len(self._started_plays) < len(self._order) or (self._current[1].any_errors_fatal and bool(lost & self._failed_in_play))

    def _finish(self) -> Iterator[Event]:
        if self._started:
            counts = tuple((host, *sums) for host, sums in self._counts.items())
            seconds = round(self.clock() - self._started, 3)
            yield PhaseFinished(self._phase, seconds, counts, aborted=self._aborted)  # type: ignore[arg-type]
        self._stopped = self._aborted
        self._started = 0.0
        self._counts = {}
        self._aborted = False

    @property
    def _phase(self) -> str:
        return self.steps[self._step][1].phase if self._step >= 0 else ""

    def _play(self, uuid: str) -> Iterator[Event]:
        identity = uuid.split("_", maxsplit=1)[0]
        if identity in self._started_plays:
            return
        self._started_plays.add(identity)
        self._failed_in_play = set()
        step = self._current[0]
        if step != self._step:
            yield from self._finish()
            self._step, self._started = step, self.clock()
            number, current = self.steps[step]
            yield PhaseStarted(current.phase, number, self.count, current.hosts, self._started)

    def _result(self, status: Status, data: Mapping[str, Any], stdout: str) -> Iterator[Event]:
        result = data.get("res") or {}
        host = str(data.get("host", ""))
        items_changed = host in self._changed_items
        self._changed_items.discard(host)
        # ansible-runner removes everything from the result of a no_log task, even `changed`. Ansible's output still shows it.
        if status == "ok" and (result.get("changed") or (result.get("censored") and (items_changed or _is_changed_line(stdout)))):
            status = "changed"
        # The event has no field for `ignore_unreachable`, but Ansible's output shows it.
        if (status == "failed" and data.get("ignore_errors")) or (status == "unreachable" and stdout.rstrip().endswith(_IGNORING)):
            status = "ignored"
        self._count(host, status)
        message = fix = ""
        if status in ("failed", "unreachable"):
            self._failed_in_play.add(host)
        if status in ("failed", "unreachable", "ignored"):
            cause = cause_of(result)
            message, fix = cause.text, cause.fix
        yield HostResult(
            host=host,
            phase=self._phase,
            role=data.get("role", ""),
            task=_task_name(data),
            task_path=data.get("task_path", ""),
            status=status,
            seconds=round(float(data.get("duration") or 0.0), 3),
            message=message,
            fix=fix,
            diff=diff_text(result) if status == "changed" else "",
        )
        for verdict in verdicts_in(result, host):
            yield VerdictFound(self._phase, verdict)

    def _count(self, host: str, status: Status) -> None:
        column = {"ok": 0, "ignored": 0, "changed": 1, "skipped": 2}.get(status)
        if column is not None:
            self._counts.setdefault(host, [0, 0, 0])[column] += 1


def _is_changed_line(stdout: Any) -> bool:
    return str(stdout or "").startswith("changed: [")


def _task_name(data: Mapping[str, Any]) -> str:
    """Return the name of the task without the role's name before it."""
    name = str(data.get("task") or data.get("name") or "")
    return re.sub(r"^[a-z0-9_]+ : ", "", name)


def verdicts_in(result: Mapping[str, Any], host: str) -> Iterator[Verdict]:
    """Yield the verdicts in `{"verdicts": [...]}` in stdout or msg of a result, including its loop items."""
    if result.get("censored"):
        return
    for part in (result, *(item for item in result.get("results") or () if isinstance(item, dict))):
        for key in ("stdout", "msg"):
            for record in _records(part.get(key)):
                yield _verdict(record, host)


def _verdict(record: Mapping[str, Any], host: str) -> Verdict:
    """Parse a record; a damaged record becomes `unknown` and does not end the run."""
    try:
        return parse_verdict({**record, "host": record.get("host") or host})
    except (ValueError, TypeError) as error:
        fix = "run the same command again; if the record is damaged again, the program that writes it has a bug"
        return Verdict(str(record.get("check") or "unnamed"), host, "unknown", reason=f"the record is damaged: {error}", fix=fix)


def _records(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str):
        start = value.find("{")
        if start < 0 or '"verdicts"' not in value:
            return []
        try:
            value, _ = json.JSONDecoder().raw_decode(value[start:])
        except (ValueError, RecursionError):
            return []
    records = value.get("verdicts") if isinstance(value, dict) else None
    return [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []


def diff_text(result: Mapping[str, Any]) -> str:
    """Return Ansible's differences as a unified diff, including loop items, cut at 4000 characters."""
    if result.get("censored"):
        return ""
    parts: list[str] = []
    for part in (result, *(item for item in result.get("results") or () if isinstance(item, dict))):
        diffs = part.get("diff") or ()
        parts.extend(_one_diff(diff) for diff in (diffs if isinstance(diffs, list) else [diffs]) if isinstance(diff, dict))
    text = "\n".join(part for part in parts if part)
    return text if len(text) <= _DIFF_CHARS else f"{text[:_DIFF_CHARS]}\n… (truncated; artifacts/*/stdout of the run has the rest)"


def _one_diff(diff: Mapping[str, Any]) -> str:
    if prepared := diff.get("prepared"):
        return str(prepared).rstrip()
    if any(diff.get(key) for key in _SKIPPED_DIFFS):
        return "(large or binary file: differences are not shown)"
    before, after = (_diff_lines(diff.get(side)) for side in ("before", "after"))
    names = [str(diff.get(f"{side}_header") or side) for side in ("before", "after")]
    return "\n".join(difflib.unified_diff(before, after, names[0], names[1], n=1, lineterm=""))


def _diff_lines(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.splitlines()
    return json.dumps(value, indent=2, sort_keys=True, default=str).splitlines() if value else []
