"""Are kernel and firmware of the machine the expected ones?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import CannotTellError, Check, judged, skipped, text_of, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_PLACES = {"kernel": "proc/sys/kernel/osrelease", "bios": "sys/class/dmi/id/bios_version"}


def _look(node: Node) -> Iterator[Verdict]:
    for name, place in _PLACES.items():
        yield replace(_compare(node, name, place), check=f"{name}_version")


def _compare(node: Node, name: str, place: str) -> Verdict:
    wanted = node.expected.get(name)
    try:
        found = text_of(node.host.path(place))
    except CannotTellError as error:
        if wanted is not None:
            return unknown(error.reason, fix=error.fix, expected=wanted, source=node.expected.source(name))
        return skipped(f"no version is expected, and {error.reason}")
    if wanted is None:
        return skipped("no version is expected", found=found)
    fix = "install the expected version and reboot, or correct the expectation"
    return judged(good=found == wanted, reason="another version", fix=fix, expected=wanted, found=found, source=node.expected.source(name))


CHECK = Check(
    "versions",
    "Kernel and firmware of the machine are the expected ones.",
    "/proc/sys/kernel/osrelease, /sys/class/dmi",
    _look,
    records=tuple(f"{name}_version" for name in _PLACES),
)
