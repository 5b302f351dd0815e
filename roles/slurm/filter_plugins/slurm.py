# ruff: noqa: INP001 (Ansible loads it by path)
"""What the preflight of Slurm decides on the controller: why these hosts and these values cannot become one cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ansible.module_utils

# The judgement is the one that the role's modules share; on the controller, Ansible does not look for it by itself.
_OWN = str(Path(__file__).resolve().parent.parent / "module_utils")
if _OWN not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OWN)

from ansible.module_utils import slurm_judge  # noqa: E402 - found only now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Slurm in each system's own packages: https://packages.debian.org/slurmctld, https://packages.ubuntu.com/slurmctld, and EPEL 9.
RELEASES = {
    ("debian", "12"): "22.05",
    ("debian", "13"): "24.11",
    ("ubuntu", "22.04"): "21.08",
    ("ubuntu", "24.04"): "23.11",
    ("rhel", "9"): "22.05",
    ("rocky", "9"): "22.05",
}


def slurm_refusals(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> list[str]:
    """Return a line for everything that stands in the way: what, and `Fix:`."""
    controllers = groups.get("slurm_controller", ())
    stated = hostvars[controllers[0]] if controllers else {}
    found = slurm_judge.all_findings(groups, {name: stated.get(name) for name in slurm_judge.VARIABLES})
    lines = [f"{one.what}. Fix: {one.fix}" for one in found]
    hosts = dict.fromkeys(host for group in slurm_judge.GROUPS for host in groups.get(group, ()))
    return lines + release_refusals({host: system_of(hostvars[host].get("__preflight_probe")) for host in hosts})


def system_of(probe: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return a host's distribution and its version, as the role preflight asked for them; empty where it has no answer."""
    try:
        found = json.loads(str((probe or {}).get("stdout") or "").strip().rpartition("\n")[2])["facts"]["os"]
        return str(found["id"]), str(found["version"])
    except (ValueError, KeyError, TypeError):
        return "", ""


def release_refusals(systems: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return why these systems cannot be one cluster: their packages carry different releases of Slurm."""
    by_release: dict[str, list[str]] = {}
    for host, (name, version) in systems.items():
        release = RELEASES.get((name, version)) or RELEASES.get((name, version.partition(".")[0]))
        if release:
            by_release.setdefault(release, []).append(f"{host} ({name} {version})")
    if len(by_release) < 2:
        return []
    shown = "; ".join(
        f"Slurm {release} on {', '.join(hosts[:3])}{f' and {len(hosts) - 3} more' if len(hosts) > 3 else ''}"
        for release, hosts in sorted(by_release.items())
    )
    return [f"the packages of these systems are different releases of Slurm: {shown}. Fix: give all hosts of the cluster one system"]


class FilterModule:
    """What Ansible looks for in a file of filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filter by name."""
        return {"slurm_refusals": slurm_refusals}
