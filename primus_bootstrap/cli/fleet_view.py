"""How probed hosts and this machine's checks are shown."""

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


def probe_table(found: Sequence[Probe]) -> Table:
    """Return one row a host; a host that did not answer has a row as well."""
    table = plain_table()
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _RIGHT else "left", overflow="fold")
    for one in found:
        if one.facts is None:
            table.add_row(one.host, coloured("unknown"), *[""] * (len(_COLUMNS) - 2))
        else:
            table.add_row(one.host, coloured("ok"), *_cells(one.facts))
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
    """Return how many GPUs there are of each model; an id that nobody knows is shown as it is.

    A display adapter that is no known accelerator (the management controller's screen, say) is no GPU here.
    """
    known, found = catalogue()["ids"], Counter[str]()
    for gpu in gpus:
        entry = known.get(gpu.id)
        if entry:
            found["/".join(entry["models"]) or entry["product"]] += gpu.count
        elif gpu.id.startswith(("1002:", "10de:")) and not gpu.pci_class.startswith("0x0300"):
            found[f"unknown model {gpu.id}"] += gpu.count
    return found


def gpu_text(gpus: Sequence[PciGpu]) -> str:
    """Render GPUs as `8 x MI300X`."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(gpu_names(gpus).items()))


def nic_text(nics: Sequence[Nic]) -> str:
    """Render interfaces as `8 x 400G, 1 x 25G down`."""
    kinds = Counter(_nic_kind(nic) for nic in nics)
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items(), reverse=True))


def _nic_kind(nic: Nic) -> str:
    speed = f"{nic.speed_mbit_per_s / 1000:g}G" if nic.speed_mbit_per_s else "speed?"
    return speed if nic.state == "up" else f"{speed} {nic.state}"


def probe_counts(found: Sequence[Probe]) -> dict[str, int]:
    """Count hosts, those unknown, those without administrator rights, and GPUs."""
    answered = [one.facts for one in found if one.facts]
    return {
        "hosts": len(found),
        "answered": len(answered),
        "unknown": len(found) - len(answered),
        "without_sudo": sum(not facts.can_become_root for facts in answered),
        "gpus": sum(gpu_names([gpu for facts in answered for gpu in facts.gpus]).values()),
    }


def probe_summary(found: Sequence[Probe]) -> str:
    """Say in one line how the fleet is."""
    counts = probe_counts(found)
    rest = [
        f"{counts['unknown']} unknown" if counts["unknown"] else "",
        f"{counts['without_sudo']} without sudo" if counts["without_sudo"] else "",
    ]
    return ", ".join([f"\n{counts['answered']} of {counts['hosts']} hosts answered", *filter(None, rest), f"{counts['gpus']} GPUs"])


def unknown_lines(found: Sequence[Probe]) -> Iterator[str]:
    """Yield why a host is unknown or has no administrator rights, and how to mend it."""
    for one in found:
        if one.facts is None:
            yield f"{one.host}: unknown: {one.detail}\n  fix: {one.fix}"
        elif not one.facts.can_become_root:
            fix = _SUDO_FIX.get(one.facts.sudo, _SUDO_FIX["no"])
            yield f"{one.host}: cannot become root: {one.facts.sudo_message}\n  fix: {fix}"


_SUDO_FIX = {
    "wants_password": "give the password: --ask-become-pass, or ansible_become_password in a Vault",
    "wrong_password": "correct the password: --ask-become-pass, or ansible_become_password in a Vault",
    "no": "install sudo and give this user a rule on the host",
}


def probe_json(found: Sequence[Probe]) -> dict[str, Any]:
    """Return plain data for `json.dumps`."""
    hosts = [{**one.to_json(), "gpu_models": dict(gpu_names(one.facts.gpus)) if one.facts else {}} for one in found]
    return {"hosts": hosts, "summary": probe_counts(found)}


def controller_table(verdicts: Sequence[Verdict]) -> Table:
    """Return one row a check of this machine."""
    table = plain_table("check", "verdict", "found", "expected")
    for verdict in verdicts:
        unit = f" {verdict.unit}" if verdict.unit else ""
        table.add_row(verdict.check, coloured(verdict.verdict), f"{verdict.found}{unit}", verdict.expected)
    return table
