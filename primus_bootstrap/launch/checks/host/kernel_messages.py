"""Search the kernel log for messages about faulty hardware; one record per kind in data/checks/kernel_messages.yml."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.checks.limits import table
from primus_bootstrap.launch.checks.model import MACHINE, Check, Node, UnavailableError, Verdicts, pass_or_fail
from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.diagnose import kernel_log

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.core.verdicts import Verdict

_HOUR_S = 3600
_QUOTED = 160  # characters of a line that a reason quotes
_FIX = "run `journalctl -k -b` and `dmesg` as root and read their errors"


def _check(node: Node) -> Verdicts:
    hours = node.expected.get("kernel_log_hours") or 0
    since = time.time() - hours * _HOUR_S if hours else 0.0
    lines = kernel_log.read(since)
    if isinstance(lines, str):
        raise UnavailableError(f"the kernel log cannot be read: {lines}", fix=_FIX)
    if not lines and not hours:
        raise UnavailableError("the kernel log has no lines of this boot", fix=_FIX)
    window = f"{hours:g} h" if hours else f"{_uptime_h(node):.0f} h since boot"
    for name, kind in table("kernel_messages").items():
        yield replace(check_lines([text for _, text in lines], kind, window), check=f"kernel_{name}")


def check_lines(lines: Sequence[str], kind: Mapping[str, Any], window: str) -> Verdict:
    """Count the lines that match one kind of message."""
    hits = _matching_lines(lines, kind["patterns"])
    most = int(kind.get("most", 0))
    reason = f"{len(hits)} lines in {window}; the last: {hits[-1].strip()[:_QUOTED]}" if hits else ""
    found = f"{len(hits)} of {len(lines)}"
    fields = {"expected": f"<= {most}", "found": found, "unit": "lines", "source": kind["source"]}
    return pass_or_fail(good=len(hits) <= most, reason=reason, fix=kind["fix"], **fields)


def _matching_lines(lines: Sequence[str], patterns: Sequence[str | Mapping[str, str]]) -> list[str]:
    """Return the lines that match a pattern, without those that a later line of the same device withdraws (`until`)."""
    found: dict[int, str] = {}
    for entry in patterns:
        pattern, until = (entry, "") if isinstance(entry, str) else (entry["pattern"], entry["until"])
        devices: dict[str, list[int]] = {}
        for number, line in enumerate(lines):
            if match := re.search(pattern, line):
                found[number] = line
                devices.setdefault(match.group(1) if until else "", []).append(number)
            elif until and (end := re.search(until, line)):
                for earlier in devices.pop(end.group(1), ()):
                    del found[earlier]
    return [found[number] for number in sorted(found)]


def _uptime_h(node: Node) -> float:
    text = sysfs.read_text(node.host.path("proc", "uptime")) or "0"
    return float(text.split()[0]) / _HOUR_S


CHECK = Check(
    "kernel_log",
    "The kernel has reported no faulty hardware since boot.",
    "journalctl --dmesg, else /dev/kmsg",
    _check,
    needs=(MACHINE,),
    records=tuple(f"kernel_{name}" for name in table("kernel_messages")),
    timeout_s=60.0,
)
