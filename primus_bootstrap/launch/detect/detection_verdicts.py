"""Compare the detected hardware with the values that the site expects; return verdict records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.verdicts import FAIL, PASS, SKIPPED, UNKNOWN, Verdict
from primus_bootstrap.launch.detect import gpus as gpu_detection

if TYPE_CHECKING:
    from primus_bootstrap.launch.detect.gpus import GpuFindings
    from primus_bootstrap.launch.detect.nics import Fabric
    from primus_bootstrap.launch.detect.routes import Interface
    from primus_bootstrap.launch.detect.site import Site

_INVENTORY = "hosts.yaml"


def evaluate(gpus: GpuFindings, fabric: Fabric, interface: Interface, site: Site, *, gid: int | None) -> tuple[Verdict, ...]:
    """Return one record per comparison. `gid` is the id of the site's device group, or None if the host does not have it."""
    records = [_model(gpus, site), _ports(gpus, fabric, site), _interface(interface, site)]
    if site.count is not None:
        records.insert(1, _count(gpus, site.count))
    if site.device_group and gpus.gpus:
        records.append(_group(site, gid))
    return tuple(Verdict(host=site.host, **fields) for fields in records)  # type: ignore[arg-type]


def _model(gpus: GpuFindings, site: Site) -> dict[str, str]:
    expected = "" if site.model == "auto" else site.model
    source = f"{_INVENTORY}: gpu_env_model" if expected else ""
    base = {"check": "gpu_model", "expected": expected, "source": source, "found": gpus.name or gpus.verdict, "reason": gpus.reason}
    if gpus.verdict == gpu_detection.UNKNOWN:
        fix = "compare with `lspci -nn`; add the id to primus_bootstrap/launch/data/gpus.yml, or remove the device"
        return {**base, "verdict": UNKNOWN, "fix": fix}
    if gpus.verdict == gpu_detection.MIXED:
        return {**base, "verdict": FAIL, "fix": "use one GPU model per host: a job runs at the speed of the slowest GPU"}
    if gpus.verdict == gpu_detection.NONE and not expected:
        return {**base, "verdict": SKIPPED}
    if expected and expected not in gpus.models:
        reason = gpus.reason or f"the PCI bus has {gpus.name}, the inventory states {expected}"
        return {**base, "verdict": FAIL, "reason": reason, "fix": "correct gpu_env_model in hosts.yaml, or replace the host's GPUs"}
    return {**base, "verdict": PASS}


def _count(gpus: GpuFindings, expected: int) -> dict[str, str]:
    found = len(gpus.gpus)
    base = {"check": "gpu_count", "expected": str(expected), "found": str(found), "unit": "GPUs", "source": f"{_INVENTORY}: gpu_env_count"}
    if gpus.problems:
        return {**base, "verdict": UNKNOWN, "reason": gpus.reason, "fix": "see gpu_model"}
    if found == expected:
        return {**base, "verdict": PASS}
    reason = f"{found} GPUs on the PCI bus, {expected} expected" if found else gpus.reason
    fix = "see `journalctl -k` and reseat the missing GPU, or correct gpu_env_count in hosts.yaml (an MI250 card counts as two)"
    return {**base, "verdict": FAIL, "reason": reason, "fix": fix}


def _ports(gpus: GpuFindings, fabric: Fabric, site: Site) -> dict[str, str]:
    chosen = len(fabric.chosen)
    rate = f" of {fabric.chosen[0].rate_gbit_per_s:g} Gbit/s {fabric.kind}" if chosen else ""
    base = {"check": "rdma_ports", "found": f"{chosen}{rate}", "unit": "ports", "reason": fabric.reason}
    if site.nic_count is not None:
        base.update(expected=str(site.nic_count), source=f"{_INVENTORY}: gpu_env_nic_count")
        if chosen == site.nic_count:
            return {**base, "verdict": PASS, "reason": ""}
        if gpus.problems and not fabric.ports:
            return {**base, "verdict": UNKNOWN, "reason": gpus.reason, "fix": "see gpu_model"}
        rejected = "; ".join(f"{port.name}: {port.reason}" for port in fabric.ports if not port.chosen)
        reason = rejected or fabric.reason or "more ports than expected"
        return {
            **base,
            "verdict": FAIL,
            "reason": reason,
            "fix": "repair the ports in the reason, or correct gpu_env_nic_count in hosts.yaml",
        }
    if chosen:
        return {**base, "verdict": PASS}
    if not fabric.ports or not gpus.gpus or all(port.denied for port in fabric.ports):
        return {**base, "verdict": SKIPPED}
    return {**base, "verdict": UNKNOWN, "fix": "repair the ports in the reason, or exclude them with gpu_env_nic_deny"}


def _interface(interface: Interface, site: Site) -> dict[str, str]:
    base = {"check": "socket_interface", "expected": site.socket_interface, "found": interface.name, "reason": interface.reason}
    if interface.name:
        return {**base, "verdict": PASS, "reason": ""}
    if site.socket_interface:
        fix = "correct gpu_env_socket_interface in hosts.yaml"
        return {**base, "verdict": FAIL, "source": f"{_INVENTORY}: gpu_env_socket_interface", "fix": fix}
    return {**base, "verdict": UNKNOWN, "fix": "set gpu_env_socket_interface in hosts.yaml"}


def _group(site: Site, gid: int | None) -> dict[str, str]:
    base = {"check": "gpu_device_group", "expected": site.device_group, "source": f"{_INVENTORY}: gpu_env_device_group"}
    if gid is not None:
        return {**base, "verdict": PASS, "found": f"gid {gid}"}
    fix = "create the group, or set gpu_env_device_group to another group or an empty string"
    return {**base, "verdict": FAIL, "found": "no such group", "reason": f"the host has no group {site.device_group}", "fix": fix}
