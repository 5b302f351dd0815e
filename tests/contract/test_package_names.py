"""Every package that a role installs has the name that the distribution's repositories use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_bootstrap import content
from tests.role_variables import variable

DATA: dict[str, Any] = yaml.safe_load((Path(__file__).parents[1] / "data" / "packages" / "names.yml").read_text(encoding="utf-8"))
SYSTEMS = {
    "debian12": {"os_family": "Debian", "distribution": "Debian", "distribution_major_version": "12"},
    "debian13": {"os_family": "Debian", "distribution": "Debian", "distribution_major_version": "13"},
    "ubuntu22.04": {"os_family": "Debian", "distribution": "Ubuntu", "distribution_major_version": "22"},
    "ubuntu24.04": {"os_family": "Debian", "distribution": "Ubuntu", "distribution_major_version": "24"},
    "rocky9": {"os_family": "RedHat", "distribution": "Rocky", "distribution_major_version": "9"},
}
# The variables of each role that have its packages, for every value of its options.
INSTALLED = {
    "alertmanager": "_alertmanager_packages",
    "baseline": "_baseline_packages",
    "container_runtime": "_container_runtime_os['podman'] + _container_runtime_os['docker']",
    "envoy": "_envoy_os['packages']",
    "gpu_driver": "_gpu_driver_rdma_packages",
    "juicefs": "_juicefs_os['packages']",
    "munge": "_munge_packages",
    "node_exporter": "_node_exporter_packages",
    "oci_registry": "_oci_registry_os['tools'] + _oci_registry_os['program_package']",
    "packet_filter": "_packet_filter_packages",
    "prometheus": "_prometheus_packages",
    "redis": "_redis_os['packages']",
    "registry_trust": "_registry_trust_packages",
    "slurm": "_slurm_os['packages'].values() | flatten",
    "slurm_accounting": "_slurm_accounting_packages",
}
# Installed by name in a task, not from a variable.
IN_TASKS = {("container_runtime", "rocky9"): ["apptainer"]}
# Roles that install upstream's release on RHEL and its rebuilds.
UPSTREAM_ON_RHEL = ("alertmanager", "node_exporter", "prometheus")


def installed(role: str, system: str) -> list[str]:
    """Return the names of the packages that a role installs on a system."""
    return [*variable(role, INSTALLED[role], SYSTEMS[system]), *IN_TASKS.get((role, system), [])]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_package_is_in_the_repositories_of_the_distribution(system: str) -> None:
    """A name is in the recorded list, or listed as unverified. Add a new one with its source."""
    listed = {*DATA[system]["packages"], *DATA[system]["unverified"]}
    names = {role: installed(role, system) for role in INSTALLED}

    assert {role: sorted(set(found) - listed) for role, found in names.items() if set(found) - listed} == {}


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_list_has_no_package_that_no_role_installs(system: str) -> None:
    """A name that a role no longer installs would hide that nobody reads the list. No name is both confirmed and unverified."""
    names = {name for role in INSTALLED for name in installed(role, system)}
    packages, unverified = DATA[system]["packages"], DATA[system]["unverified"]

    assert sorted({*packages, *unverified} - names) == []
    assert sorted(set(packages) & set(unverified)) == []


def test_every_package_has_a_known_source() -> None:
    """A source has an address, a date, and what was read there."""
    entries = [entry for system in SYSTEMS for entry in DATA[system]["packages"].values()]

    assert {entry["source"] for entry in entries} == set(DATA["sources"])
    assert all(set(source) == {"what", "url", "read"} and source["url"].startswith("https://") for source in DATA["sources"].values())
    assert all(set(entry) <= {"version", "repository", "source", "where"} for entry in entries)


def test_every_role_that_installs_packages_is_checked() -> None:
    """A new role with apt, dnf or package is added to INSTALLED."""
    uses = re.compile(r"ansible\.builtin\.(apt|dnf|package):")
    files = [path for path in content.roles_dir().glob("*/tasks/**/*.yml") if uses.search(path.read_text(encoding="utf-8"))]
    roles = {path.relative_to(content.roles_dir()).parts[0] for path in files}

    assert roles == set(INSTALLED)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("role", UPSTREAM_ON_RHEL)
def test_roles_without_a_package_for_rhel_install_a_release_with_a_known_checksum(role: str, machine: str) -> None:
    """The default version needs no settings of the site there. Debian uses its package, and no download."""
    rocky = SYSTEMS["rocky9"] | {"architecture": machine}
    url = variable(role, f"_{role}_fetched_url", rocky)

    assert variable(role, f"_{role}_packages", rocky) == []
    assert variable(role, f"_{role}_is_upstream", rocky) is True
    assert re.fullmatch(r"[0-9a-f]{64}", variable(role, f"_{role}_checksum", rocky))
    assert url.endswith({"x86_64": ".linux-amd64.tar.gz", "aarch64": ".linux-arm64.tar.gz"}[machine])
    assert variable(role, f"_{role}_is_upstream", SYSTEMS["debian12"]) is False
    assert variable(role, f"_{role}_checksum", rocky, **{f"{role}_version": "9.9.9"}) == ""
