"""Check that the links between the GPUs are up: XGMI in KFD's topology, NVLink in nvidia-smi."""

from __future__ import annotations

from collections import Counter

from primus_bootstrap.launch.checks import nvidia, xgmi
from primus_bootstrap.launch.checks.model import GPU, Check, Node, Verdicts, pass_or_fail, skipped, unknown

_FIX = "drain the node and reboot it; if the link stays down, replace the GPU or the baseboard"


def _check(node: Node) -> Verdicts:
    if node.gpus_of("amd"):
        yield from _amd(node)
    if node.gpus_of("nvidia"):
        yield from _nvidia(node)


def _amd(node: Node) -> Verdicts:
    """Check that each GPU has a link to every other GPU."""
    amd = node.gpus_of("amd")
    found = xgmi.read_xgmi(node.host, [gpu.address for gpu in amd])
    if not found.in_hive and (len(amd) == 1 or all(gpu.virtual or gpu.form != "module" for gpu in amd)):
        yield skipped("these GPUs have no XGMI links", source=xgmi.SOURCE)
        return
    for gpu in amd:
        card, others = xgmi.card_of(gpu.address), len(found.linked) - 1
        lost = sorted(found.linked.keys() - found.linked[card] - {card})
        fields = {"device": gpu.address, "expected": str(others), "found": str(others - len(lost)), "source": xgmi.SOURCE}
        yield pass_or_fail(good=not lost, reason=f"no XGMI link to {', '.join(lost)}", fix=_FIX, unit="GPUs linked", **fields)


def _nvidia(node: Node) -> Verdicts:
    """Check that no link is inactive, and that each GPU has as many links as most GPUs of the node."""
    gpus = nvidia.query(node)
    links = nvidia.nvlinks(node, gpus)
    if links is None:
        yield skipped("one GPU only, and nvidia-smi reports no NVLink", source=nvidia.NVLINK_SOURCE)
        return
    if not any(links.values()):
        yield skipped("these GPUs have no NVLink", source=nvidia.NVLINK_SOURCE)
        return
    counts = {uuid: nvidia.active_links(found) for uuid, found in links.items()}
    usual = Counter(counts.values()).most_common(1)[0][0]
    for one in gpus:
        uuid = one.uuid
        fields = {"device": one.address, "serial": one.serial, "unit": "links", "source": nvidia.NVLINK_SOURCE}
        if uuid not in links:
            yield unknown("nvidia-smi nvlink --status does not report this GPU", fix=nvidia.SEE_NVLINK_STATUS, **fields)
            continue
        total = max(usual, len(links[uuid]))
        reason = f"{total - counts[uuid]} links are not active"
        yield pass_or_fail(good=counts[uuid] == total, reason=reason, fix=_FIX, expected=str(total), found=str(counts[uuid]), **fields)


CHECK = Check(
    "gpu_links",
    "Every GPU has an XGMI link to every other GPU of the node, or all its NVLinks are active.",
    "AMD: KFD's topology in sysfs; NVIDIA: nvidia-smi nvlink --status",
    _check,
    needs=(GPU,),
    timeout_s=nvidia.TIMEOUT_S,
)
