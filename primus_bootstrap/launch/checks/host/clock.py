"""Check that a time service synchronizes the clock, and its offset. Without synchronization the offset is unknown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import MACHINE, Check, Node, UnavailableError, Verdicts, pass_or_fail, passed, unknown
from primus_bootstrap.launch.checks.tools import run_tool

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict

_FIX = "see `chronyc sources` and `systemctl status chrony`; the phase baseline installs the time service"


def _check(node: Node) -> Verdicts:
    try:
        tracking = run_tool(node.environment, ["chronyc", "-n", "tracking"], install="chrony")
    except UnavailableError as error:
        yield _systemd(node, error.what)
        return
    yield _chrony(tracking)


def _chrony(tracking: str) -> Verdict:
    most = limit("clock_offset_s")
    fields = {"expected": f"<= {most.value}", "unit": "s", "source": most.source}
    leap = re.search(r"^Leap status\s*:\s*(.+)$", tracking, re.MULTILINE)
    offset = re.search(r"^System time\s*:\s*([0-9.]+) seconds (fast|slow)", tracking, re.MULTILINE)
    if leap is None or offset is None:
        return unknown("the output of chronyc tracking is not in the expected format", fix=_FIX, **fields)
    if leap[1].strip() == "Not synchronised":
        return unknown("chrony is not synchronized with a server", fix=_FIX, found=leap[1].strip(), **fields)
    seconds = float(offset[1])
    return pass_or_fail(
        good=seconds <= most.value, reason=f"the clock is {seconds:g} s {offset[2]}", fix=_FIX, found=f"{seconds:g}", **fields
    )


def _systemd(node: Node, problem: str) -> Verdict:
    fields = {"expected": "synchronized", "source": "timedatectl"}
    answer = run_tool(node.environment, ["timedatectl", "show", "--property=NTPSynchronized", "--value"], install="systemd").strip()
    if answer == "yes":
        return passed(found="synchronized", **fields)
    return unknown(f"no time service synchronizes the clock ({problem}; timedatectl: {answer!r})", fix=_FIX, found=answer, **fields)


CHECK = Check(
    "clock",
    "A time service synchronizes the clock, and its offset is small.",
    "chronyc tracking, else timedatectl",
    _check,
    needs=(MACHINE,),
)
