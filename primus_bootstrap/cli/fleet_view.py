"""Formats the results of `probe` and `doctor`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from primus_bootstrap.cli.console import coloured, plain_table
from primus_bootstrap.launch.detect.gpus import catalogue

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.fleet.facts import HostFacts, Nic, PciGpu
    from primus_bootstrap.fleet.probe import Probe

_COLUMNS = ("host", "answer", "sudo", "system", "kernel", "cores", "memory GiB", "disk free GiB", "clock ms", "GPUs", "NICs")
_RIGHT = frozenset({"cores", "memory GiB", "disk free GiB", "clock ms"})


def probe_table(probes: Sequence[Probe]) -> Table:
    """Return a table with one row per host, including hosts that did not answer."""
    table = plain_table()
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _RIGHT else "left", overflow="fold")
    for probe in probes:
        if probe.facts is None:
            table.add_row(probe.host, coloured("unknown"), *[""] * (len(_COLUMNS) - 2))
        else:
            table.add_row(probe.host, coloured("ok"), *_cells(probe.facts))
    return table


def _cells(facts: HostFacts) -> tuple[str, ...]:
    clock = facts.clock
    room = [disk.free_gib for disk in facts.disks if disk.path in ("/", "/var")]
    return (
        "yes" if facts.can_become_root else "no",
        f"{facts.os_id} {facts.os_version}",
        facts.kernel,
        str(facts.cores),
        f"{facts.memory_gib:.1f}",
        f"{min(room):.1f}" if room else "",
        f"{clock.offset_s * 1000:+.0f} ±{clock.error_s * 1000:.0f}",
        gpu_text(facts.gpus) or "none",
        nic_text(facts.nics) or "none",
    )


def gpu_names(gpus: Sequence[PciGpu]) -> Counter[str]:
    """Return the number of GPUs per model, with the PCI id for an unknown model.

    Display adapters that are no known accelerator, such as that of the management controller, do not count.
    """
    models, counts = catalogue()["ids"], Counter[str]()
    for gpu in gpus:
        entry = models.get(gpu.id)
        if entry:
            counts["/".join(entry["models"]) or entry["product"]] += gpu.count
        elif gpu.id.startswith(("1002:", "10de:")) and not gpu.pci_class.startswith("0x0300"):
            counts[f"unknown model {gpu.id}"] += gpu.count
    return counts


def gpu_text(gpus: Sequence[PciGpu]) -> str:
    """Return GPUs as `8 x MI300X`."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(gpu_names(gpus).items()))


def nic_text(nics: Sequence[Nic]) -> str:
    """Return network interfaces as `8 x 400G, 1 x 25G down`."""
    kinds = Counter(_nic_kind(nic) for nic in nics)
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items(), reverse=True))


def _nic_kind(nic: Nic) -> str:
    speed = f"{nic.speed_mbit_per_s / 1000:g}G" if nic.speed_mbit_per_s else "speed?"
    return speed if nic.state == "up" else f"{speed} {nic.state}"


def probe_counts(probes: Sequence[Probe]) -> dict[str, int]:
    """Return the numbers of hosts, unknown hosts, hosts without sudo, and GPUs."""
    answered = [probe.facts for probe in probes if probe.facts]
    return {
        "hosts": len(probes),
        "answered": len(answered),
        "unknown": len(probes) - len(answered),
        "without_sudo": sum(not facts.can_become_root for facts in answered),
        "gpus": sum(gpu_names([gpu for facts in answered for gpu in facts.gpus]).values()),
    }


def probe_summary(probes: Sequence[Probe]) -> str:
    """Return one line with the numbers of hosts and GPUs."""
    counts = probe_counts(probes)
    rest = [
        f"{counts['unknown']} unknown" if counts["unknown"] else "",
        f"{counts['without_sudo']} without sudo" if counts["without_sudo"] else "",
    ]
    return ", ".join([f"\n{counts['answered']} of {counts['hosts']} hosts answered", *filter(None, rest), f"{counts['gpus']} GPUs"])


def unknown_lines(probes: Sequence[Probe]) -> Iterator[str]:
    """Yield the reason and the fix for each host that is unknown or does not allow sudo."""
    for probe in probes:
        if probe.facts is None:
            yield f"{probe.host}: unknown: {probe.detail}\n  fix: {probe.fix}"
        elif not probe.facts.can_become_root:
            fix = _SUDO_FIX.get(probe.facts.sudo, _SUDO_FIX["no"])
            yield f"{probe.host}: cannot become root: {probe.facts.sudo_message}\n  fix: {fix}"


_SUDO_FIX = {
    "wants_password": "pass the password with --ask-become-pass, or set ansible_become_password in a Vault file",
    "wrong_password": "correct the password: --ask-become-pass, or ansible_become_password in a Vault file",
    "no": "install sudo on the host and add a rule for this user",
}


def probe_json(probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the probes as plain data for `json.dumps`."""
    hosts = [{**probe.to_json(), "gpu_models": dict(gpu_names(probe.facts.gpus)) if probe.facts else {}} for probe in probes]
    return {"hosts": hosts, "summary": probe_counts(probes)}


def controller_table(verdicts: Sequence[Verdict]) -> Table:
    """Return a table with one row per check of this machine."""
    table = plain_table("check", "verdict", "found", "expected")
    for verdict in verdicts:
        unit = f" {verdict.unit}" if verdict.unit else ""
        table.add_row(verdict.check, coloured(verdict.verdict), f"{verdict.found}{unit}", verdict.expected)
    return table
