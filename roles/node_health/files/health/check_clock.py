"""Check that a time service keeps the clock, and how far the clock is off. Uses chrony, else systemd."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, UNKNOWN, container, finding, run, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings

FIX = "see `chronyc sources` and `systemctl status chrony`; the phase baseline sets the time service up"


def check(settings: Settings) -> Iterator[Finding]:
    """Compare the offset of the clock with `max_offset_s`. Without synchronisation the offset is unknown."""
    kind = container(settings.get("root", "/"))
    if kind:
        yield finding("clock", SKIPPED, reason=f"the clock is that of the host of this {kind} container")
        return
    status, tracking = run(["chronyc", "-n", "tracking"])
    if status == 0:
        yield check_tracking(tracking, settings["max_offset_s"])
        return
    status, answer = run(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    if status == 0 and answer == "yes":
        yield finding("clock", PASS, expected="synchronised", found="synchronised", source="timedatectl")
        return
    reason = "no time service synchronises the clock" if status == 0 else f"neither chronyc nor timedatectl answers: {answer}"
    yield finding(
        "clock", UNKNOWN, expected="synchronised", found=answer if status == 0 else "", source="timedatectl", reason=reason, fix=FIX
    )


def check_tracking(tracking: str, limit: float) -> Finding:
    """Check the output of `chronyc tracking`."""
    leap = re.search(r"(?m)^Leap status\s*:\s*(.+)$", tracking)
    offset = re.search(r"(?m)^System time\s*:\s*([0-9.]+) seconds (fast|slow)", tracking)
    fields = {"expected": f"<= {limit:g}", "unit": "s", "source": "node_health_clock_max_offset_s"}
    if not leap or not offset or leap.group(1).strip() == "Not synchronised":
        reason = "chrony has no time server, so the offset of the clock is unknown"
        return finding("clock", UNKNOWN, **fields, found=leap.group(1).strip() if leap else "", reason=reason, fix=FIX)
    seconds = float(offset.group(1))
    reason = f"the clock is {seconds:g} s {offset.group(2)}"
    return finding("clock", PASS if seconds <= limit else FAIL, **fields, found=f"{seconds:g}", reason=reason, fix=FIX)


if __name__ == "__main__":
    serve(check)
