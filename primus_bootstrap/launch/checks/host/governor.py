"""Do all processors run under the expected frequency governor? Every one is looked at, not the first."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.kernel_settings import FIX, wanted
from primus_bootstrap.launch.checks.model import MACHINE, Check, judged, listed, skipped, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _look(node: Node) -> Iterator[Verdict]:
    folder = node.host.path("sys", "devices", "system", "cpu")
    paths = [folder / name / "cpufreq" / "scaling_governor" for name in listed(folder) if re.fullmatch(r"cpu\d+", name)]
    met = Counter(text_of(path) for path in paths if path.exists())
    if not met:
        yield skipped("the firmware or the hypervisor sets the processors' frequency")
        return
    expected, source = wanted(node, "cpu_governor")
    found = ", ".join(f"{count} x {name}" for name, count in sorted(met.items()))
    others = sum(count for name, count in met.items() if name != expected)
    yield judged(good=not others, reason=f"{others} processors have another", fix=FIX, expected=str(expected), found=found, source=source)


CHECK = Check("cpu_governor", "All processors run under the expected frequency governor.", "cpufreq in sysfs", _look, needs=(MACHINE,))
