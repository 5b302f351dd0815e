"""Check that all RDMA devices with the same board id have the same firmware, and the expected version."""

from __future__ import annotations

from collections import Counter, defaultdict

from primus_bootstrap.launch.checks.model import RDMA, Check, Node, Verdicts, list_names, pass_or_fail, unknown
from primus_bootstrap.launch.detect import sysfs

_FIX = "update all devices with this board id to the same firmware (mlxfwmanager, niccli, nicctl)"


def _check(node: Node) -> Verdicts:
    folder = node.host.path("sys", "class", "infiniband")
    boards: dict[str, dict[str, str]] = defaultdict(dict)
    for device in list_names(folder):
        version = sysfs.read_text(folder / device / "fw_ver")
        if not version:
            yield unknown("its firmware version cannot be read", device=device, fix="see `dmesg` for messages of its driver")
            continue
        ids = ":".join(sysfs.read_text(folder / device / "device" / name) or "" for name in ("vendor", "device"))
        boards[sysfs.read_text(folder / device / "board_id") or ids][device] = version
    for board, versions in boards.items():
        stated = (node.expected.get("rdma_firmware") or {}).get(board)
        expected = stated or Counter(versions.values()).most_common(1)[0][0]
        source = node.expected.source("rdma_firmware") if stated else f"the most frequent version on devices with the board id {board}"
        reason = "not the expected version" if stated else f"not the version of the node's other devices with the board id {board}"
        for device, version in versions.items():
            fields = {"device": device, "expected": expected, "found": version, "source": source}
            yield pass_or_fail(good=version == expected, reason=reason, fix=_FIX, **fields)


CHECK = Check(
    "rdma_firmware",
    "All RDMA devices with the same board id have the same firmware, and the expected version.",
    "fw_ver in sysfs",
    _check,
    needs=(RDMA,),
)
