"""Check width and speed of every GPU's PCI Express link. A lower speed fails only under load: idle GPUs may lower it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia, pcie
from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import GPU, Check, Node, UnavailableError, Verdicts, pass_or_fail, passed, skipped, unknown
from primus_bootstrap.launch.detect import sysfs

if TYPE_CHECKING:
    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.detect.gpus import Gpu

_WIDTH, _SPEED = "gpu_pcie_width", "gpu_pcie_speed"


def _check(node: Node) -> Verdicts:
    for gpu in node.gpu_findings.gpus:
        if gpu.virtual:
            for name in (_WIDTH, _SPEED):
                yield _named(skipped("a virtual function has no link", device=gpu.address), name)
            continue
        try:
            link = pcie.read_link(node.pci(gpu.address))
        except UnavailableError as error:
            for name in (_WIDTH, _SPEED):
                yield _named(unknown(error.what, fix=error.fix, device=gpu.address), name)
            continue
        fields = {
            "device": gpu.address,
            "expected": f"x{link.max_width}",
            "found": f"x{link.width}",
            "unit": "lanes",
            "source": pcie.SOURCE,
        }
        reason = f"the link uses {link.width} of {link.max_width} lanes"
        yield _named(pass_or_fail(good=link.width >= link.max_width, reason=reason, fix=pcie.FIX, **fields), _WIDTH)
        yield _named(_speed(node, gpu, link), _SPEED)


def _speed(node: Node, gpu: Gpu, link: pcie.Link) -> Verdict:
    fields = {"device": gpu.address, "expected": f"{link.max_speed:g}", "found": f"{link.speed:g}", "unit": "GT/s", "source": pcie.SOURCE}
    if link.speed >= link.max_speed:
        return passed(**fields)
    try:
        busy = _busy_percent(node, gpu)
    except UnavailableError as error:
        reason = f"the link is slower than its maximum, which is normal for an idle GPU; the load is not known: {error.what}"
        return unknown(reason, fix=error.fix, **fields)
    if busy < limit("gpu_busy_percent").value:
        return skipped(f"the GPU is idle ({busy:g} % load) and may lower the speed of its link; this is checked under load only", **fields)
    return pass_or_fail(good=False, reason=f"the link is slower than its maximum at {busy:g} % load", fix=pcie.FIX, **fields)


def _busy_percent(node: Node, gpu: Gpu) -> float:
    if gpu.vendor == "amd":
        busy = sysfs.read_int(node.pci(gpu.address) / "gpu_busy_percent")
    else:
        one = next(one for one in nvidia.query(node) if one.address == gpu.address)
        found = one.number("utilization/gpu_util")
        busy = None if found is None else int(found)
    if busy is None:
        raise UnavailableError("the driver does not report it")
    return busy


def _named(record: Verdict, name: str) -> Verdict:
    return replace(record, check=name)


CHECK = Check(
    "gpu_pcie",
    "The PCIe link of every GPU has the maximum width and speed of both its ends.",
    "current_link_* and max_link_* in sysfs; the GPU's load",
    _check,
    needs=(GPU,),
    records=(_WIDTH, _SPEED),
    timeout_s=nvidia.TIMEOUT_S,
)
