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
# cgroup/v2 came with 22.05: https://slurm.schedmd.com/cgroups.html
WITHOUT_CGROUP_V2 = frozenset(("21.08",))


def slurm_problems(groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Any]) -> list[str]:
    """Return one line per problem, with its fix."""
    controllers = groups.get("slurm_controller", ())
    values = hostvars[controllers[0]] if controllers else {}
    found = slurm_checks.all_findings(groups, {name: values.get(name) for name in slurm_checks.VARIABLES})
    lines = [f"{one.what}. Fix: {one.fix}" for one in found]
    hosts = dict.fromkeys(host for group in slurm_checks.GROUPS for host in groups.get(group, ()))
    systems = {host: read_system(hostvars[host].get("__preflight_probe")) for host in hosts}
    lines += release_problems(systems)
    if str(values.get("slurm_proctrack", "auto")) != "auto":
        return lines
    nodes = [host for host in groups.get("slurm_node", ()) if not in_container(hostvars[host].get("__preflight_probe"))]
    return lines + isolation_problems({host: systems[host] for host in nodes})


def read_facts(probe: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the facts of a host from the probe of the role preflight; empty if it has no answer."""
    try:
        found = json.loads(str((probe or {}).get("stdout") or "").strip().rpartition("\n")[2])["facts"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def read_system(probe: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return distribution and version of a host; empty if they are unknown."""
    found = read_facts(probe).get("os") or {}
    return str(found.get("id") or ""), str(found.get("version") or "")


def in_container(probe: Mapping[str, Any] | None) -> bool:
    """Return whether a host is a container; false if that is unknown."""
    return read_facts(probe).get("virtualisation", "none") not in ("none", "vm")


def release_of(system: tuple[str, str]) -> str:
    """Return the release of Slurm of a distribution; empty for an unknown one."""
    name, version = system
    return RELEASES.get((name, version)) or RELEASES.get((name, version.partition(".")[0])) or ""


def isolation_problems(systems: Mapping[str, tuple[str, str]]) -> list[str]:
    """Report hosts whose Slurm has no plug-in for control groups version 2, which current distributions use: it cannot confine jobs."""
    weak = [f"{host} ({' '.join(system)})" for host, system in systems.items() if release_of(system) in WITHOUT_CGROUP_V2]
    if not weak:
        return []
    what = f"the Slurm of {_shown(weak)} has no plug-in for cgroup v2, so it does not confine jobs to their GPUs, cores and memory"
    fix = "use a newer distribution, or accept it with slurm_proctrack: proctrack/linuxproc (proctrack/cgroup if the hosts use cgroup v1)"
    return [f"{what}. Fix: {fix}"]


def _shown(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")


def release_problems(systems: Mapping[str, tuple[str, str]]) -> list[str]:
    """Report hosts whose distributions have different releases of Slurm."""
    by_release: dict[str, list[str]] = {}
    for host, (name, version) in systems.items():
        release = release_of((name, version))
        if release:
            by_release.setdefault(release, []).append(f"{host} ({name} {version})")
    if len(by_release) < 2:
        return []
    shown = "; ".join(f"Slurm {release} on {_shown(hosts)}" for release, hosts in sorted(by_release.items()))
    fix = "use one distribution for all hosts of the cluster"
    return [f"the distributions of the hosts have different releases of Slurm: {shown}. Fix: {fix}"]


class FilterModule:
    """The filters of the role."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"slurm_problems": slurm_problems}
