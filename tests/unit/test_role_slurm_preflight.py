"""Preflight of Slurm under plain Ansible: validation of the variables and compatibility of releases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from primus_bootstrap.inventory.ansible.role_filters import load_filters

filters: Any = load_filters("slurm")


def host(system: str = "", *, kind: str = "none", **variables: Any) -> dict[str, Any]:
    """Return a host's variables; `system` is its distribution, such as `debian 12`, `kind` that of the container or virtual machine."""
    name, _, version = system.partition(" ")
    answer = {"facts": {"os": {"id": name, "version": version}, "virtualisation": kind}, "verdicts": []}
    return {**variables, **({"__preflight_probe": {"stdout": f"banner\n{json.dumps(answer)}\n"}} if system else {})}


GROUPS = {"slurm_controller": ["ctl1"], "slurm_node": ["n1", "n2"]}


def refusals(hostvars: dict[str, Any], **groups: list[str]) -> list[str]:
    """Return the errors."""
    found: list[str] = filters.slurm_problems({**GROUPS, **groups}, {"ctl1": host(), "n1": host(), "n2": host(), **hostvars})
    return found


def test_defaults_are_valid() -> None:
    """The defaults make a cluster."""
    assert refusals({}) == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"slurm_partitions": [{"name": "main", "nodes": "nosuch"}]}, "slurm_node has no nosuch. Fix: name hosts"),
        ({"slurm_qos": [{"name": "high"}]}, "slurm_qos is set, and slurm_accounting has no host. Fix: add a host"),
        ({"slurm_extra_conf": {"ClusterName": "x"}}, "the role sets ClusterName itself. Fix: use the variable of"),
    ],
)
def test_invalid_values_are_refused(variables: dict[str, Any], words: str) -> None:
    """Each error has a fix; values of the first controller count."""
    (line,) = refusals({"ctl1": host(**variables)})

    assert words in line


def test_two_controllers_need_a_shared_state_folder() -> None:
    """A configured folder is accepted; an empty one is refused."""
    both = ["ctl1", "ctl2"]

    assert "no shared state folder" in refusals({"ctl2": host()}, slurm_controller=both)[0]
    assert refusals({"ctl1": host(slurm_shared_state_dir="/jfs/slurm"), "ctl2": host()}, slurm_controller=both) == []


OLD = "ubuntu 22.04"


@pytest.mark.parametrize(
    ("proctrack", "kind", "refused"),
    [
        ("auto", "none", True),
        ("auto", "vm", True),
        ("auto", "podman", False),
        ("proctrack/linuxproc", "none", False),
        ("proctrack/cgroup", "none", False),
    ],
)
def test_slurm_that_cannot_confine_jobs_is_refused_before_its_installation(proctrack: str, kind: str, *, refused: bool) -> None:
    """21.08 has no plug-in for cgroup v2. A setting accepts it; containers depend on their host."""
    nodes = {name: host(OLD, kind=kind) for name in ("n1", "n2")}
    found = refusals({"ctl1": host(OLD, slurm_proctrack=proctrack), **nodes})

    assert len(found) == refused
    assert all("the Slurm of n1 (ubuntu 22.04), n2 (ubuntu 22.04) has no plug-in for cgroup v2" in line for line in found)
    assert all("Fix: use a newer distribution, or accept it with slurm_proctrack: proctrack/linuxproc" in line for line in found)


def test_different_releases_are_refused() -> None:
    """Debian 12 has Slurm 22.05, Debian 13 has 24.11. The message names three hosts and counts the rest."""
    mixed = {"ctl1": host("debian 12"), "n1": host("debian 13"), "n2": host("debian 12")}
    (line,) = refusals(mixed)

    assert "Slurm 22.05 on ctl1 (debian 12), n2 (debian 12); Slurm 24.11 on n1 (debian 13)" in line
    assert line.endswith("Fix: use one distribution for all hosts of the cluster")


@pytest.mark.parametrize("other", ["debian 12", "rocky 9.4", "", "arch 2026"])
def test_equal_or_unknown_releases_are_accepted(other: str) -> None:
    """Two systems may have the same release. Unknown systems are not refused."""
    assert refusals({"ctl1": host("debian 12"), "n1": host(other)}) == []


def test_invalid_probe_output_is_unknown() -> None:
    """Noise does not name a system."""
    assert filters.read_system({"stdout": "connection lost"}) == ("", "")
    assert filters.read_system(None) == ("", "")


def test_wrong_type_is_left_to_the_argument_specs() -> None:
    """The validation does not crash on it."""
    odd: dict[str, Any] = {"slurm_partitions": "main", "slurm_qos": [1], "slurm_users": {"a": 1}, "slurm_accounts": None}

    assert refusals({"ctl1": host(**odd, slurm_extra_conf=[])}) == []
