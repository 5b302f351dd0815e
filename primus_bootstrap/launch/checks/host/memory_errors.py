"""How many memory errors has the memory controller counted?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import CannotTellError, Check, judged, listed, number_of, skipped, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_SOURCE = "https://docs.kernel.org/admin-guide/RAS/main.html (EDAC)"
_DAY_S = 86400
_FIX = "drain the node and replace the DIMM that `edac-util -v` or the BMC names"


def _look(node: Node) -> Iterator[Verdict]:
    folder = node.host.path("sys", "devices", "system", "edac", "mc")
    controllers = [name for name in listed(folder) if name.startswith("mc")]
    if not controllers:
        yield skipped("no EDAC driver counts memory errors here (a virtual machine, or a driver that is not loaded)")
    for name in controllers:
        try:
            uncorrected, corrected, age_s = (number_of(folder / name / file) for file in ("ue_count", "ce_count", "seconds_since_reset"))
        except CannotTellError as error:
            yield unknown(error.reason, fix=error.fix, device=name, source=_SOURCE)
            continue
        most = limit("memory_corrected_a_day")
        # Less than a day counts as a day: one error in the first minute is no rate.
        rate = corrected * _DAY_S / max(age_s, _DAY_S)
        found = f"{uncorrected} uncorrected, {rate:.1f} corrected a day"
        expected = f"0 uncorrected, <= {most.value} corrected a day"
        fields = {"device": name, "expected": expected, "found": found, "unit": "errors", "source": f"{_SOURCE}; {most.source}"}
        yield judged(good=not uncorrected and rate <= most.value, reason=f"{found} in {age_s} s", fix=_FIX, **fields)


CHECK = Check("memory_errors", "The memory controllers have counted no uncorrected and few corrected errors.", "EDAC in sysfs", _look)
