"""Check the number of memory errors. Reads the counters of EDAC in sysfs, per DIMM if they exist.

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
FIX = "drain the node and replace the DIMM; a reboot resets the counters"


def check(settings: Settings) -> Iterator[Finding]:
    """Check each DIMM, or each controller without counters of DIMMs. Errors are counted since the boot or the reset of the counters."""
    root = Path(settings.get("root", "/"), "sys/devices/system/edac/mc")
    controllers = sorted(root.glob("mc[0-9]*"))
    if not controllers:
        yield finding(
            "memory_errors", SKIPPED, reason="no EDAC driver counts memory errors here (a virtual machine, or a driver not loaded)"
        )
    for controller in controllers:
        dimms = [(dimm, "dimm_") for dimm in sorted(controller.glob("dimm*")) if (dimm / "dimm_ue_count").exists()]
        for folder, prefix in dimms or [(controller, "")]:
            yield _check_counters(folder, f"{prefix}%s_count", controller, settings)
        # Errors that the hardware cannot assign to a DIMM have a separate counter.
        if dimms and (controller / "ue_noinfo_count").exists():
            yield _check_counters(controller, "%s_noinfo_count", controller, settings)


def _check_counters(folder: Path, counter: str, controller: Path, settings: Settings) -> Finding:
    device = folder.name if folder == controller else f"{controller.name}/{_label(folder)}"
    fields = {"device": device, "unit": "errors", "source": "node_health_memory_max_corrected_per_day"}
    try:
        uncorrected, corrected = (int((folder / (counter % kind)).read_text("utf-8")) for kind in ("ue", "ce"))
        age_s = int((controller / "seconds_since_reset").read_text("utf-8"))
    except (OSError, ValueError) as error:
        fix = "see `dmesg | grep EDAC`; reload the driver of the controller"
        return finding("memory_errors", UNKNOWN, **fields, reason=f"the counters of {device} cannot be read: {error}", fix=fix)
    if uncorrected > settings["max_uncorrected"]:
        fields.update(source="node_health_memory_max_uncorrected", expected=f"<= {settings['max_uncorrected']} uncorrected")
        reason = f"{uncorrected} uncorrected errors on {device}"
        return finding("memory_errors", FAIL, **fields, found=f"{uncorrected} uncorrected", reason=reason, fix=FIX)
    # Use at least one day: one error in the first minute is not a rate.
    rate = corrected * DAY_S / max(age_s, DAY_S)
    limit = settings["max_corrected_per_day"]
    reason = f"{corrected} corrected errors on {device} in {age_s} s, more than {limit} a day"
    verdict = PASS if rate <= limit else FAIL
    found = f"{rate:.1f} corrected a day, {uncorrected} uncorrected"
    return finding("memory_errors", verdict, **fields, expected=f"<= {limit} corrected a day", found=found, reason=reason, fix=FIX)


def _label(folder: Path) -> str:
    """Return the label of the slot from the firmware, as it is printed on the board; else the name in the kernel."""
    try:
        return (folder / "dimm_label").read_text("utf-8").strip() or folder.name
    except OSError:
        return folder.name


if __name__ == "__main__":
    serve(check)
