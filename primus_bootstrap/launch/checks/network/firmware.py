"""Have all RDMA devices of one board the same firmware, and the expected one?"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import RDMA, Check, judged, listed, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_FIX = "bring all devices of this board to one firmware (mlxfwmanager, niccli, nicctl)"


def _look(node: Node) -> Iterator[Verdict]:
    folder = node.host.path("sys", "class", "infiniband")
    boards: dict[str, dict[str, str]] = defaultdict(dict)
    for device in listed(folder):
        version = sysfs.read_text(folder / device / "fw_ver")
        if not version:
            yield unknown("its firmware version cannot be read", device=device, fix="see `dmesg` for its driver")
            continue
        ids = ":".join(sysfs.read_text(folder / device / "device" / name) or "" for name in ("vendor", "device"))
        boards[sysfs.read_text(folder / device / "board_id") or ids][device] = version
    for board, versions in boards.items():
        wanted = (node.expected.get("rdma_firmware") or {}).get(board)
        usual = wanted or Counter(versions.values()).most_common(1)[0][0]
        source = node.expected.source("rdma_firmware") if wanted else f"what most devices of the board {board} have"
        for device, version in versions.items():
            reason = "not the expected version" if wanted else f"other than the node's other devices of the board {board}"
            yield judged(good=version == usual, reason=reason, fix=_FIX, device=device, expected=usual, found=version, source=source)


CHECK = Check(
    "rdma_firmware", "All RDMA devices of one board have the same firmware, and the expected one.", "fw_ver in sysfs", _look, needs=(RDMA,)
)
