"""Check that the vendor's kernel driver is bound to every GPU and has the expected version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, Check, Node, Verdicts, pass_or_fail, passed, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict

_DRIVERS = {"amd": "amdgpu", "nvidia": "nvidia"}
_FIX = "see `journalctl -k` for messages of the driver, then apply the phase gpu"


def _check(node: Node) -> Verdicts:
    for gpu in node.gpu_findings.gpus:
        expected = _DRIVERS[gpu.vendor]
        bound = sysfs.link_name(node.pci(gpu.address) / "driver")
        reason = f"the driver {bound} is bound to it" if bound else "no driver is bound to it"
        yield pass_or_fail(good=bound == expected, device=gpu.address, expected=expected, found=bound or "none", reason=reason, fix=_FIX)
    for vendor in sorted({gpu.vendor for gpu in node.gpu_findings.gpus}):
        yield _version(node, _DRIVERS[vendor])


def _version(node: Node, driver: str) -> Verdict:
    """Check the driver's version. The amdgpu module of the kernel has no version of its own."""
    expected, source = node.expected.get("gpu_driver"), node.expected.source("gpu_driver")
    found = sysfs.read_text(node.host.path("sys", "module", driver, "version")) or ""
    fields = {"expected": expected or "", "found": f"{driver} {found or '(of the kernel)'}", "source": source}
    if expected is None:
        return passed(**fields)
    if not found:
        return unknown(f"the module {driver} reports no version", fix=f"see `modinfo {driver}`", **fields)
    return pass_or_fail(good=found == expected, reason="not the expected driver version", fix="apply the phase gpu, then reboot", **fields)


CHECK = Check(
    "gpu_driver",
    "The vendor's driver is bound to every GPU and has the expected version.",
    "driver links and module versions in sysfs",
    _check,
    needs=(GPU,),
)
