"""What do the NVMe disks say of themselves: are they alive, and are there as many as expected; SMART through the tool nvme."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.ask import ask
from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import MACHINE, CannotTellError, Check, judged, listed, skipped, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_STATE, _SMART = "nvme_state", "nvme_smart"
_SOURCE = "NVM Express Base Specification 2.0, SMART / Health Information (critical_warning, media_errors)"
_FIX = "drain the node, save what is on the disk, and replace it"


def _look(node: Node) -> Iterator[Verdict]:
    folder, wanted = node.host.path("sys", "class", "nvme"), node.expected.get("nvme_disks")
    disks = [name for name in listed(folder) if re.fullmatch(r"nvme\d+", name)]
    if wanted is not None:
        reason, fix = f"{len(disks)} of {wanted:g} disks", "see `journalctl -k` for a disk that was removed; reseat it"
        count = judged(good=len(disks) == wanted, reason=reason, fix=fix, expected=f"{wanted:g}", found=str(len(disks)), unit="disks")
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
        told = unknown("its state cannot be read", fix="see `journalctl -k`", **fields) if state is None else None
        yield replace(told or judged(good=state == "live", reason=f"it is {state}", fix=_FIX, found=state or "", **fields), check=_STATE)
        try:
            record = _smart(node, name)
        except CannotTellError as error:
            record = unknown(error.reason, fix=error.fix, source=_SOURCE)
        yield replace(record, check=_SMART, device=name, serial=serial)


def _smart(node: Node, name: str) -> Verdict:
    text = ask(node.environment, ["nvme", "smart-log", f"/dev/{name}", "--output-format=json"], install="nvme-cli")
    try:
        data = json.loads(text)
        warning, errors = int(data["critical_warning"]), int(data["media_errors"])
        used = int(data["percent_used"] if "percent_used" in data else data["percentage_used"])
    except (ValueError, KeyError, TypeError) as error:
        raise CannotTellError(f"nvme smart-log printed something else: {error!r}", fix=f"nvme smart-log /dev/{name}") from error
    most = limit("nvme_used_percent")
    found = f"warning {warning}, {errors} media errors, {used} % used"
    expected = f"warning 0, 0 media errors, <= {most.value} % used"
    good = not warning and not errors and used <= most.value
    return judged(good=good, reason=found, fix=_FIX, expected=expected, found=found, source=_SOURCE)


CHECK = Check(
    "nvme",
    "Every NVMe disk is alive, has no errors of its medium, and is not worn out.",
    "/sys/class/nvme; nvme smart-log",
    _look,
    needs=(MACHINE,),
    records=(_STATE, _SMART),
    timeout_s=20.0,
)
