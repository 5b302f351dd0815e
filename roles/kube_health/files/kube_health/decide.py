"""Decide which Nodes are taken out of service for their health and which are put back. Pure functions.

fail      without our mark: mark the Node, unless the breaker is open
pass      newer than the record of our mark: remove the mark
unknown   missing, stale or reported as unknown: leave the Node as it is, and report it
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
# A report from the future means that clocks differ. A small difference is normal, and times are whole seconds.
FUTURE_S = 30.0
REASON_CHARS = 300


class Report(NamedTuple):
    """The content of a Node's condition; `written` is in seconds since the epoch, 0 if the condition has no time."""

    verdict: str
    reason: str
    written: float = 0.0


class Plan(NamedTuple):
    """The decision: records to set by Node, Nodes to release, why others are unknown, and the open breaker, if any."""

    mark: dict[str, dict[str, Any]]
    release: list[str]
    unknown: dict[str, str]
    breaker: dict[str, Any]
    tripped: bool


def read_report(node: Mapping[str, Any], now: float, stale_s: float) -> Report | None:
    """Return a Node's report; None for a Node without health checks."""
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
        return Report("unknown", f"its report is {age_s:.0f} s old, more than {stale_s:.0f} s, or from the future", written)
    verdict = {"True": "pass", "False": "fail"}.get(str(found.get("status")), "unknown")
    return Report(verdict, reason or ("it reports unknown" if verdict == "unknown" else ""), written)


def seconds_of(stamp: str) -> float:
    """Return a timestamp of Kubernetes as seconds since the epoch."""
    return dt.datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()  # noqa: FURB162 - Python 3.9


def allowed_marks(nodes: int, limit_percent: float) -> int:
    """Return how many Nodes may be out of service for their health: the share, rounded down, but at least one; 0 for 0 %."""
    return max(1, math.floor(nodes * limit_percent / 100)) if limit_percent > 0 else 0


def decide(nodes: Iterable[Mapping[str, Any]], now: float, limit_percent: float, stale_s: float, breaker: Mapping[str, Any]) -> Plan:
    """Decide for every Node; `breaker` is the open breaker, empty if there is none."""
    reports = {name_of(node): (node, read_report(node, now, stale_s)) for node in nodes}
    checked = {name: (node, report) for name, (node, report) in reports.items() if report or mark_of(node, MARK)}
    marked = {name: mark for name, (node, _) in checked.items() if (mark := mark_of(node, MARK))}
    failed = {name: report for name, (_, report) in checked.items() if report and report.verdict == "fail" and name not in marked}
    release = [name for name, mark in marked.items() if _has_recovered(checked[name][1], mark)]
    unknown = {name: _reason(report) for name, (_, report) in checked.items() if report is None or report.verdict == "unknown"}
    limit = allowed_marks(len(checked), limit_percent)
    # Nodes that are released in this run do not count.
    tripped = not breaker and bool(failed) and len(marked) - len(release) + len(failed) > limit
    if tripped:
        breaker = {
            "reason": f"{len(failed)} of {len(checked)} Nodes fail at once and {len(marked)} are out: more than {limit} "
            f"(kube_health_limit_percent {limit_percent:g}); the cause is probably something that they share",
            "since": round(now),
            "nodes": sorted(failed),
        }
    mark = {} if breaker else {name: _record(name, report) for name, report in failed.items()}
    return Plan(mark, sorted(release), unknown, dict(breaker), tripped)


def _record(name: str, report: Report) -> dict[str, Any]:
    """Return the mark's record. Its time is that of the failing report, by the node's clock, so that a later pass can be compared."""
    return {"host": name, "owner": OWNER, "reason": report.reason[:REASON_CHARS] or "its health checks fail", "time": report.written}


def _has_recovered(report: Report | None, mark: Mapping[str, Any]) -> bool:
    return bool(report and report.verdict == "pass" and mark.get("owner") == OWNER and report.written > float(mark["time"]))


def _reason(report: Report | None) -> str:
    return report.reason if report else "it is out of service for its health, and no longer reports"
