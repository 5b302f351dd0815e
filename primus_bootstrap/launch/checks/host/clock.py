"""Does a time service keep the clock, and how far off is it? A clock that nobody keeps is unknown: nobody knows how far off it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.ask import ask
from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import MACHINE, CannotTellError, Check, judged, passed, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_FIX = "see `chronyc sources` and `systemctl status chrony`; the phase baseline sets the time service up"


def _look(node: Node) -> Iterator[Verdict]:
    try:
        tracking = ask(node.environment, ["chronyc", "-n", "tracking"], install="chrony")
    except CannotTellError as error:
        yield _systemd(node, error.reason)
        return
    yield _chrony(tracking)


def _chrony(tracking: str) -> Verdict:
    most = limit("clock_offset_s")
    fields = {"expected": f"<= {most.value}", "unit": "s", "source": most.source}
    leap = re.search(r"^Leap status\s*:\s*(.+)$", tracking, re.MULTILINE)
    offset = re.search(r"^System time\s*:\s*([0-9.]+) seconds (fast|slow)", tracking, re.MULTILINE)
    if leap is None or offset is None:
        return unknown("chronyc tracking printed something else", fix=_FIX, **fields)
    if leap[1].strip() == "Not synchronised":
        return unknown("chrony follows no server", fix=_FIX, found=leap[1].strip(), **fields)
    seconds = float(offset[1])
    return judged(good=seconds <= most.value, reason=f"the clock is {seconds:g} s {offset[2]}", fix=_FIX, found=f"{seconds:g}", **fields)


def _systemd(node: Node, problem: str) -> Verdict:
    fields = {"expected": "synchronised", "source": "timedatectl"}
    answer = ask(node.environment, ["timedatectl", "show", "--property=NTPSynchronized", "--value"], install="systemd").strip()
    if answer == "yes":
        return passed(found="synchronised", **fields)
    return unknown(f"no time service keeps the clock ({problem}; timedatectl says {answer!r})", fix=_FIX, found=answer, **fields)


CHECK = Check(
    "clock", "A time service keeps the clock, close to the true time.", "chronyc tracking, else timedatectl", _look, needs=(MACHINE,)
)
