# ruff: noqa: INP001 (Ansible loads it by path)
"""Check the hosts and settings of a Slurm cluster, for the preflight."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ansible.module_utils

# The modules of the role use the same checks. On the controller, Ansible does not add a role's module_utils to the search path.
_MODULE_UTILS = str(Path(__file__).resolve().parent.parent / "module_utils")
if _MODULE_UTILS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_MODULE_UTILS)

from ansible.module_utils import slurm_checks  # noqa: E402 - found only now

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Releases of Slurm by distribution: https://packages.debian.org/slurmctld, https://packages.ubuntu.com/slurmctld, and EPEL 9.
RELEASES = {
    ("debian", "12"): "22.05",
    ("debian", "13"): "24.11",
    ("ubuntu", "22.04"): "21.08",
    ("ubuntu", "24.04"): "23.11",
    ("rhel", "9"): "22.05",
    ("rocky", "9"): "22.05",
}


def slurm_problems(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> list[str]:
    """Return one line per problem, with its fix."""
    controllers = groups.get("slurm_controller", ())
    values = hostvars[controllers[0]] if controllers else {}
    found = slurm_checks.all_findings(groups, {name: values.get(name) for name in slurm_checks.VARIABLES})
    lines = [f"{one.what}. Fix: {one.fix}" for one in found]
    hosts = dict.fromkeys(host for group in slurm_checks.GROUPS for host in groups.get(group, ()))
    return lines + release_problems({host: read_system(hostvars[host].get("__preflight_probe")) for host in hosts})


def read_system(probe: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return distribution and version of a host from the probe of the role preflight; empty if it has no answer."""
    try:
        found = json.loads(str((probe or {}).get("stdout") or "").strip().rpartition("\n")[2])["facts"]["os"]
        return str(found["id"]), str(found["version"])
    except (ValueError, KeyError, TypeError):
        return "", ""


def release_problems(systems: Mapping[str, tuple[str, str]]) -> list[str]:
    """Report hosts whose distributions have different releases of Slurm."""
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
    fix = "use one distribution for all hosts of the cluster"
    return [f"the distributions of the hosts have different releases of Slurm: {shown}. Fix: {fix}"]


class FilterModule:
    """The filters of the role."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"slurm_problems": slurm_problems}
