"""Check the versions of the kernel and of the host's firmware."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import Check, Node, UnavailableError, Verdicts, pass_or_fail, require_text, skipped, unknown

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict

_PATHS = {"kernel": "proc/sys/kernel/osrelease", "bios": "sys/class/dmi/id/bios_version"}


def _check(node: Node) -> Verdicts:
    for name, path in _PATHS.items():
        yield replace(_compare(node, name, path), check=f"{name}_version")


def _compare(node: Node, name: str, path: str) -> Verdict:
    expected = node.expected.get(name)
    try:
        found = require_text(node.host.path(path))
    except UnavailableError as error:
        if expected is not None:
            return unknown(error.what, fix=error.fix, expected=expected, source=node.expected.source(name))
        return skipped(f"no version is expected, and {error.what}")
    if expected is None:
        return skipped("no version is expected", found=found)
    fix = "install the expected version and reboot, or correct the expected version"
    fields = {"expected": expected, "found": found, "source": node.expected.source(name)}
    return pass_or_fail(good=found == expected, reason="not the expected version", fix=fix, **fields)


CHECK = Check(
    "versions",
    "Kernel and firmware have the expected versions.",
    "/proc/sys/kernel/osrelease, /sys/class/dmi",
    _check,
    records=tuple(f"{name}_version" for name in _PATHS),
)
