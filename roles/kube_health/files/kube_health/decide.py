"""Which Nodes go out of service for their health, which come back, and which are left as they are. Pure functions.

fail      and no mark of ours: mark it, unless the breaker holds
pass      newer than the record of our mark: take that mark off
unknown   missing, stale or said so: untouched, and reported
"""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from node_marks import mark_of, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONDITION = "PrimusHealthy"
MARK = "health"
OWNER = "primus-health"
# A report from the future means clocks that differ; a little of it is only slewing, and times are whole seconds.
FUTURE_S = 30.0
REASON_CHARS = 300


class Report(NamedTuple):
    """What a Node's condition says: `written` is seconds since the epoch, 0 where it says nothing."""

    verdict: str
    reason: str
    written: float = 0.0


class Plan(NamedTuple):
    """What is to be done: records to set by Node, Nodes to release, why others are unknown, and the breaker that holds, if any."""

    mark: dict[str, dict[str, Any]]
    release: list[str]
    unknown: dict[str, str]
    breaker: dict[str, Any]
    tripped: bool


def read_report(node: Mapping[str, Any], now: float, stale_s: float) -> Report | None:
    """Return a Node's report; None where nobody reports, which is a Node without health checks."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    found = next((one for one in conditions if one.get("type") == CONDITION), None)
    if found is None:
        return None
    try:
        written = seconds_of(str(found["lastHeartbeatTime"]))
    except (KeyError, ValueError) as error:
        return Report("unknown", f"its condition has no time: {error!r}")
    reason, age_s = str(found.get("message") or ""), now - written
    if not -FUTURE_S <= age_s <= stale_s:
        return Report("unknown", f"its report is {age_s:.0f} s old, more than {stale_s:.0f} s, or of the future", written)
    verdict = {"True": "pass", "False": "fail"}.get(str(found.get("status")), "unknown")
    return Report(verdict, reason or ("it says so itself" if verdict == "unknown" else ""), written)


def seconds_of(stamp: str) -> float:
    """Return a time of Kubernetes' as seconds since the epoch."""
    return dt.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()  # noqa: FURB162 - Python 3.9


def may_mark(nodes: int, limit_percent: float) -> int:
    """Return how many Nodes may be out of service for their health: the share, rounded down, but one at least; none where it is 0."""
    return max(1, math.floor(nodes * limit_percent / 100)) if limit_percent > 0 else 0


def decide(nodes: Iterable[Mapping[str, Any]], now: float, limit_percent: float, stale_s: float, breaker: Mapping[str, Any]) -> Plan:
    """Decide for every Node; `breaker` is the one that stands, empty where none does."""
    reports = {name_of(node): (node, read_report(node, now, stale_s)) for node in nodes}
    told = {name: (node, report) for name, (node, report) in reports.items() if report or mark_of(node, MARK)}
    marked = {name: mark for name, (node, _) in told.items() if (mark := mark_of(node, MARK))}
    fresh = {name: report for name, (_, report) in told.items() if report and report.verdict == "fail" and name not in marked}
    release = [name for name, mark in marked.items() if _is_well(told[name][1], mark)]
    unknown = {name: _why(report) for name, (_, report) in told.items() if report is None or report.verdict == "unknown"}
    limit = may_mark(len(told), limit_percent)
    # Those that come back in the same look count no more.
    tripped = not breaker and bool(fresh) and len(marked) - len(release) + len(fresh) > limit
    if tripped:
        breaker = {
            "reason": f"{len(fresh)} of {len(told)} Nodes fail at once and {len(marked)} are out: more than {limit} "
            f"(kube_health_limit_percent {limit_percent:g}); rather something that they share",
            "since": round(now),
            "nodes": sorted(fresh),
        }
    mark = {} if breaker else {name: _record(name, report) for name, report in fresh.items()}
    return Plan(mark, sorted(release), unknown, dict(breaker), tripped)


def _record(name: str, report: Report) -> dict[str, Any]:
    """Return the mark's record; its time is that of the failing report, by the node's own clock, as a later pass has one."""
    return {"host": name, "owner": OWNER, "reason": report.reason[:REASON_CHARS] or "its health checks fail", "time": report.written}


def _is_well(report: Report | None, mark: Mapping[str, Any]) -> bool:
    return bool(report and report.verdict == "pass" and mark.get("owner") == OWNER and report.written > float(mark["time"]))


def _why(report: Report | None) -> str:
    return report.reason if report else "it is out of service for its health, and reports no more"
