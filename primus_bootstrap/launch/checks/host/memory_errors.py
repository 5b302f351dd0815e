"""Check the memory errors that the memory controllers have counted."""

from __future__ import annotations

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import (
    Check,
    Node,
    UnavailableError,
    Verdicts,
    list_names,
    pass_or_fail,
    require_number,
    skipped,
    unknown,
)

_SOURCE = "https://docs.kernel.org/admin-guide/RAS/main.html (EDAC)"
_DAY_S = 86400
_FIX = "find the DIMM with `edac-util -v` or the BMC's event log, drain the node, and replace it"


def _check(node: Node) -> Verdicts:
    folder = node.host.path("sys", "devices", "system", "edac", "mc")
    controllers = [name for name in list_names(folder) if name.startswith("mc")]
    if not controllers:
        yield skipped("no EDAC driver is loaded, for example in a virtual machine")
    for name in controllers:
        try:
            uncorrected, corrected, age_s = (
                require_number(folder / name / file) for file in ("ue_count", "ce_count", "seconds_since_reset")
            )
        except UnavailableError as error:
            yield unknown(error.what, fix=error.fix, device=name, source=_SOURCE)
            continue
        most = limit("memory_corrected_a_day")
        # At least one day, so that a single error soon after a reset does not give a high rate.
        rate = corrected * _DAY_S / max(age_s, _DAY_S)
        found = f"{uncorrected} uncorrected, {rate:.1f} corrected a day"
        expected = f"0 uncorrected, <= {most.value} corrected a day"
        fields = {"device": name, "expected": expected, "found": found, "unit": "errors", "source": f"{_SOURCE}; {most.source}"}
        yield pass_or_fail(good=not uncorrected and rate <= most.value, reason=f"{found} in {age_s} s", fix=_FIX, **fields)


CHECK = Check(
    "memory_errors", "The memory controllers have counted no uncorrected errors and few corrected errors.", "EDAC in sysfs", _check
)
