"""Check the number, state and SMART data of the NVMe disks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import (
    MACHINE,
    Check,
    Node,
    UnavailableError,
    Verdicts,
    list_names,
    pass_or_fail,
    skipped,
    unknown,
)
from primus_bootstrap.launch.checks.tools import run_tool
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict

_STATE, _SMART = "nvme_state", "nvme_smart"
_SOURCE = "NVM Express Base Specification 2.0, SMART / Health Information (critical_warning, media_errors)"
_FIX = "drain the node, back up the disk, and replace it"


def _check(node: Node) -> Verdicts:
    folder, expected = node.host.path("sys", "class", "nvme"), node.expected.get("nvme_disks")
    disks = [name for name in list_names(folder) if re.fullmatch(r"nvme\d+", name)]
    if expected is not None:
        reason, fix = f"{len(disks)} of {expected:g} disks found", "see `journalctl -k` for a disk that was removed; reseat it"
        fields = {"expected": f"{expected:g}", "found": str(len(disks)), "unit": "disks"}
        count = pass_or_fail(good=len(disks) == expected, reason=reason, fix=fix, **fields)
        yield replace(count, check=_STATE, source=node.expected.source("nvme_disks"))
    elif not disks:
        yield replace(skipped("no NVMe disk"), check=_STATE)
    if not disks:
        yield replace(skipped("no NVMe disk"), check=_SMART)
    for name in disks:
        serial = sysfs.read_text(folder / name / "serial") or ""
        state = sysfs.read_text(folder / name / "state")
        fields = {
            "device": name,
            "serial": serial,
            "expected": "live",
            "source": "state in /sys/class/nvme; Linux drivers/nvme/host/sysfs.c",
        }
        if state is None:
            yield replace(unknown("its state cannot be read", fix="see `journalctl -k`", **fields), check=_STATE)
        else:
            verdict = pass_or_fail(good=state == "live", reason=f"its state is {state}", fix=_FIX, found=state, **fields)
            yield replace(verdict, check=_STATE)
        try:
            record = _smart(node, name)
        except UnavailableError as error:
            record = unknown(error.what, fix=error.fix, source=_SOURCE)
        yield replace(record, check=_SMART, device=name, serial=serial)


def _smart(node: Node, name: str) -> Verdict:
    text = run_tool(node.environment, ["nvme", "smart-log", f"/dev/{name}", "--output-format=json"], install="nvme-cli")
    try:
        data = json.loads(text)
        warning, errors = int(data["critical_warning"]), int(data["media_errors"])
        used = int(data["percent_used"] if "percent_used" in data else data["percentage_used"])
    except (ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"nvme smart-log has no usable values: {error!r}", fix=f"nvme smart-log /dev/{name}") from error
    most = limit("nvme_used_percent")
    found = f"warning {warning}, {errors} media errors, {used} % used"
    expected = f"warning 0, 0 media errors, <= {most.value} % used"
    good = not warning and not errors and used <= most.value
    return pass_or_fail(good=good, reason=found, fix=_FIX, expected=expected, found=found, source=_SOURCE)


CHECK = Check(
    "nvme",
    "Every NVMe disk is live, has no media errors, and is not worn out.",
    "/sys/class/nvme; nvme smart-log",
    _check,
    needs=(MACHINE,),
    records=(_STATE, _SMART),
    timeout_s=20.0,
)
