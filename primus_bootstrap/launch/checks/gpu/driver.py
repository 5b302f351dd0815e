"""Has the vendor's kernel driver taken every GPU, and is it the expected version?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, Check, judged, passed, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_DRIVERS = {"amd": "amdgpu", "nvidia": "nvidia"}
_FIX = "see `journalctl -k` for why the driver left it, and apply the phase gpu"


def _look(node: Node) -> Iterator[Verdict]:
    for gpu in node.gpu_findings.gpus:
        wanted = _DRIVERS[gpu.vendor]
        bound = sysfs.link_name(node.pci(gpu.address) / "driver")
        reason = f"{bound} holds it" if bound else "no driver holds it"
        yield judged(good=bound == wanted, device=gpu.address, expected=wanted, found=bound or "none", reason=reason, fix=_FIX)
    for vendor in sorted({gpu.vendor for gpu in node.gpu_findings.gpus}):
        yield _version(node, _DRIVERS[vendor])


def _version(node: Node, driver: str) -> Verdict:
    """Judge the version; the kernel's own amdgpu has the kernel's and none of its own."""
    wanted, source = node.expected.get("gpu_driver"), node.expected.source("gpu_driver")
    found = sysfs.read_text(node.host.path("sys", "module", driver, "version")) or ""
    fields = {"expected": wanted or "", "found": f"{driver} {found or '(of the kernel)'}", "source": source}
    if wanted is None:
        return passed(**fields)
    if not found:
        return unknown(f"the module {driver} says no version", fix="see `modinfo " + driver + "`", **fields)
    return judged(good=found == wanted, reason="another version of the driver", fix="apply the phase gpu, then reboot", **fields)


CHECK = Check(
    "gpu_driver",
    "The vendor's driver holds every GPU, in the expected version.",
    "driver links and module versions in sysfs",
    _look,
    needs=(GPU,),
)
