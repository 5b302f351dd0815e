"""Is the clock kept by a time service, and how far off is it? Asks chrony, else systemd; sets nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, UNKNOWN, ask, container, finding, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings

FIX = "see `chronyc sources` and `systemctl status chrony`; the phase baseline sets the time service up"


def judge(settings: Settings) -> Iterator[Finding]:
    """Judge the clock against `max_offset_s`. Not synchronised is unknown: nobody knows then how far off it is."""
    kind = container(settings.get("root", "/"))
    if kind:
        yield finding("clock", SKIPPED, reason=f"the clock belongs to the machine below this {kind} container")
        return
    status, tracking = ask(["chronyc", "-n", "tracking"])
    if status == 0:
        yield judge_tracking(tracking, settings["max_offset_s"])
        return
    status, answer = ask(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    if status == 0 and answer == "yes":
        yield finding("clock", PASS, expected="synchronised", found="synchronised", source="timedatectl")
        return
    reason = "no time service keeps the clock" if status == 0 else f"neither chronyc nor timedatectl answers: {answer}"
    yield finding(
        "clock", UNKNOWN, expected="synchronised", found=answer if status == 0 else "", source="timedatectl", reason=reason, fix=FIX
    )


def judge_tracking(tracking: str, limit: float) -> Finding:
    """Judge what `chronyc tracking` printed."""
    leap = re.search(r"(?m)^Leap status\s*:\s*(.+)$", tracking)
    offset = re.search(r"(?m)^System time\s*:\s*([0-9.]+) seconds (fast|slow)", tracking)
    fields = {"expected": f"<= {limit:g}", "unit": "s", "source": "node_health_clock_max_offset_s"}
    if not leap or not offset or leap.group(1).strip() == "Not synchronised":
        reason = "chrony follows no server, so nobody knows how far off the clock is"
        return finding("clock", UNKNOWN, **fields, found=leap.group(1).strip() if leap else "", reason=reason, fix=FIX)
    seconds = float(offset.group(1))
    reason = f"the clock is {seconds:g} s {offset.group(2)}"
    return finding("clock", PASS if seconds <= limit else FAIL, **fields, found=f"{seconds:g}", reason=reason, fix=FIX)


if __name__ == "__main__":
    serve(judge)
