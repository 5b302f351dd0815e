"""Check that the links between the GPUs are up: XGMI in KFD's topology, NVLink in nvidia-smi.

The check does not read amdgpu's file xgmi_error, because reading resets the error (Linux drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import (
    GPU,
    Check,
    Node,
    UnavailableError,
    Verdicts,
    list_names,
    pass_or_fail,
    require_text,
    skipped,
    unknown,
)
from primus_bootstrap.launch.checks.tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_AMD = "KFD topology, io_links of type 11: Linux drivers/gpu/drm/amd/amdkfd/kfd_crat.h (CRAT_IOLINK_TYPE_XGMI)"
_NVIDIA = "https://docs.nvidia.com/deploy/nvidia-smi/ (nvlink --status)"
_XGMI = 11
_SEE_STATUS = "run `nvidia-smi nvlink --status` and read its output"
_FIX = "drain the node and reboot it; if the link stays down, replace the GPU or the baseboard"


def _check(node: Node) -> Verdicts:
    if node.gpus_of("amd"):
        yield from _amd(node)
    if node.gpus_of("nvidia"):
        yield from _nvidia(node)


def _amd(node: Node) -> Verdicts:
    """Check that each GPU has a link to every other GPU."""
    folder = node.host.path("sys", "class", "kfd", "kfd", "topology", "nodes")
    nodes = {name: _properties(folder / name / "properties") for name in list_names(folder)}
    if not nodes:
        raise UnavailableError(f"{folder} contains no node", fix="see `dmesg | grep kfd`")
    hives = {name: found["hive_id"] for name, found in nodes.items() if found.get("simd_count") and found.get("hive_id")}
    amd = node.gpus_of("amd")
    if not hives and (len(amd) == 1 or all(gpu.virtual or gpu.form != "module" for gpu in amd)):
        yield skipped("these GPUs have no XGMI links", source=_AMD)
        return
    cards = {name: _card(nodes[name]) for name in hives}
    linked: dict[str, set[str]] = {_card_of(gpu.address): set() for gpu in amd}
    for name in hives:
        ends = [_properties(folder / name / "io_links" / link / "properties") for link in list_names(folder / name / "io_links")]
        others = {cards.get(str(end.get("node_to")), "") for end in ends if end.get("type") == _XGMI}
        linked.setdefault(cards[name], set()).update(others - {cards[name], ""})
    for gpu in amd:
        lost = sorted(linked.keys() - linked[_card_of(gpu.address)] - {_card_of(gpu.address)})
        fields = {"device": gpu.address, "expected": str(len(linked) - 1), "found": str(len(linked) - 1 - len(lost)), "source": _AMD}
        yield pass_or_fail(good=not lost, reason=f"no XGMI link to {', '.join(lost)}", fix=_FIX, unit="GPUs linked", **fields)


def _properties(path: Path) -> Mapping[str, int]:
    return {match[1]: int(match[2]) for match in re.finditer(r"^(\w+) (\d+)$", require_text(path), re.MULTILINE)}


def _card(found: Mapping[str, int]) -> str:
    """Return domain, bus and device of a KFD node. Partitions of one card are several nodes that differ in the function only."""
    location = found.get("location_id", 0)  # bus, device and function, packed as in PCI
    return f"{found.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"


def _card_of(address: str) -> str:
    return address.partition(".")[0]


def _nvidia(node: Node) -> Verdicts:
    """Check that no link is inactive, and that each GPU has as many links as most GPUs of the node."""
    gpus = nvidia.query(node)
    text = run_tool(node.environment, ["nvidia-smi", "nvlink", "--status"], install="the NVIDIA driver", allow_empty=True)
    if not text.strip() and len(gpus) == 1:  # driver 580 prints nothing for a single H200 in a virtual machine
        yield skipped("one GPU only, and nvidia-smi reports no NVLink", source=_NVIDIA)
        return
    parts = re.split(r"^GPU \d+:.*\(UUID: (\S+)\)\s*$", text, flags=re.MULTILINE)
    links = {uuid: re.findall(r"^\s*Link \d+: (.+)$", part, re.MULTILINE) for uuid, part in zip(parts[1::2], parts[2::2])}  # noqa: B905 (3.9)
    if not links:
        raise UnavailableError(f"nvidia-smi nvlink --status printed no GPU: {text.strip()[:100]!r}", fix=_SEE_STATUS)
    if not any(links.values()):
        yield skipped("these GPUs have no NVLink", source=_NVIDIA)
        return
    counts = {uuid: sum("GB/s" in link for link in found) for uuid, found in links.items()}
    usual = Counter(counts.values()).most_common(1)[0][0]
    for one in gpus:
        uuid = (one.element.findtext("uuid") or "").strip()
        fields = {"device": one.address, "serial": one.serial, "unit": "links", "source": _NVIDIA}
        if uuid not in links:
            yield unknown("nvidia-smi nvlink --status does not report this GPU", fix=_SEE_STATUS, **fields)
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
