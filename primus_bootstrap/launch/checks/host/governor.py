"""Check that every processor uses the expected frequency governor."""

from __future__ import annotations

import re
from collections import Counter

from primus_bootstrap.launch.checks.kernel_settings import FIX, expected_value
from primus_bootstrap.launch.checks.model import MACHINE, Check, Node, Verdicts, list_names, pass_or_fail, require_text, skipped


def _check(node: Node) -> Verdicts:
    folder = node.host.path("sys", "devices", "system", "cpu")
    paths = [folder / name / "cpufreq" / "scaling_governor" for name in list_names(folder) if re.fullmatch(r"cpu\d+", name)]
    counts = Counter(require_text(path) for path in paths if path.exists())
    if not counts:
        yield skipped("the firmware or the hypervisor controls the processors' frequency")
        return
    expected, source = expected_value(node, "cpu_governor")
    found = ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))
    others = sum(count for name, count in counts.items() if name != expected)
    yield pass_or_fail(
        good=not others, reason=f"{others} processors use another governor", fix=FIX, expected=str(expected), found=found, source=source
    )


CHECK = Check("cpu_governor", "Every processor uses the expected frequency governor.", "cpufreq in sysfs", _check, needs=(MACHINE,))
