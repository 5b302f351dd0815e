"""Check how often each network port has lost its link since boot."""

from __future__ import annotations

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import MACHINE, Check, Node, Verdicts, list_names, pass_or_fail, skipped
from primus_bootstrap.launch.detect import sysfs


def _check(node: Node) -> Verdicts:
    folder, most = node.host.path("sys", "class", "net"), limit("link_downs")
    counts = {
        name: sysfs.read_int(folder / name / "carrier_down_count") for name in list_names(folder) if (folder / name / "device").exists()
    }
    counted = {name: count for name, count in counts.items() if count is not None}
    if not counted:
        yield skipped("no network card counts losses of its link")
    for name, count in counted.items():
        fields = {"device": name, "expected": f"<= {most.value}", "found": str(count), "unit": "losses since boot", "source": most.source}
        fix = "check cable, transceiver and switch port"
        yield pass_or_fail(good=count <= most.value, reason=f"the port lost its link {count} times", fix=fix, **fields)


CHECK = Check("link_flaps", "No network port has lost its link often since boot.", "carrier_down_count in sysfs", _check, needs=(MACHINE,))
