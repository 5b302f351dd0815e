"""How many memory errors has the memory controller counted? Reads EDAC's counters in sysfs, DIMM by DIMM where it has them.

Layout: https://docs.kernel.org/admin-guide/RAS/main.html, "EDAC - Error Detection And Correction".
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, UNKNOWN, finding, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings

DAY_S = 86400
FIX = "drain the node and replace the DIMM; the counters start again at a reboot"


def judge(settings: Settings) -> Iterator[Finding]:
    """Judge each DIMM, or each controller that counts no DIMMs; errors are counted since boot or the counters' reset."""
    root = Path(settings.get("root", "/"), "sys/devices/system/edac/mc")
    controllers = sorted(root.glob("mc[0-9]*"))
    if not controllers:
        yield finding(
            "memory_errors", SKIPPED, reason="no EDAC driver counts memory errors here (a virtual machine, or a driver not loaded)"
        )
    for controller in controllers:
        dimms = [(dimm, "dimm_") for dimm in sorted(controller.glob("dimm*")) if (dimm / "dimm_ue_count").exists()]
        for place, prefix in dimms or [(controller, "")]:
            yield _judge_place(place, f"{prefix}%s_count", controller, settings)
        # Errors that the hardware could give to no DIMM are in none of their counters.
        if dimms and (controller / "ue_noinfo_count").exists():
            yield _judge_place(controller, "%s_noinfo_count", controller, settings)


def _judge_place(place: Path, counter: str, controller: Path, settings: Settings) -> Finding:
    device = place.name if place == controller else f"{controller.name}/{_label(place)}"
    fields = {"device": device, "unit": "errors", "source": "node_health_memory_max_corrected_per_day"}
    try:
        uncorrected, corrected = (int((place / (counter % kind)).read_text("utf-8")) for kind in ("ue", "ce"))
        age_s = int((controller / "seconds_since_reset").read_text("utf-8"))
    except (OSError, ValueError) as error:
        fix = "see `dmesg | grep EDAC`; load the controller's driver again"
        return finding("memory_errors", UNKNOWN, **fields, reason=f"the counters of {device} cannot be read: {error}", fix=fix)
    if uncorrected > settings["max_uncorrected"]:
        fields.update(source="node_health_memory_max_uncorrected", expected=f"<= {settings['max_uncorrected']} uncorrected")
        reason = f"{uncorrected} uncorrected errors on {device}"
        return finding("memory_errors", FAIL, **fields, found=f"{uncorrected} uncorrected", reason=reason, fix=FIX)
    # Less than a day is taken for a day: one error in the first minute is no rate.
    rate = corrected * DAY_S / max(age_s, DAY_S)
    limit = settings["max_corrected_per_day"]
    reason = f"{corrected} corrected errors on {device} in {age_s} s, more than {limit} a day"
    verdict = PASS if rate <= limit else FAIL
    found = f"{rate:.1f} corrected a day, {uncorrected} uncorrected"
    return finding("memory_errors", verdict, **fields, expected=f"<= {limit} corrected a day", found=found, reason=reason, fix=FIX)


def _label(place: Path) -> str:
    """Return the slot's name as the firmware gives it, which is what stands on the board; else the kernel's."""
    try:
        return (place / "dimm_label").read_text("utf-8").strip() or place.name
    except OSError:
        return place.name


if __name__ == "__main__":
    serve(judge)
