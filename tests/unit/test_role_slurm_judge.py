"""What the preflight of Slurm refuses under plain Ansible: the judgement of the inventory's rules, and releases that do not mix."""

from __future__ import annotations

import json
from typing import Any

import pytest

from primus_bootstrap.inventory.ansible.role_filters import load_filters

filters: Any = load_filters("slurm")


def host(system: str = "", **variables: Any) -> dict[str, Any]:
    """Return a host's variables; `system` is what the role preflight was told, such as `debian 12`."""
    name, _, version = system.partition(" ")
    answer = {"facts": {"os": {"id": name, "version": version}}, "verdicts": []}
    return {**variables, **({"__preflight_probe": {"stdout": f"banner\n{json.dumps(answer)}\n"}} if system else {})}


GROUPS = {"slurm_controller": ["ctl1"], "slurm_node": ["n1", "n2"]}


def refusals(hostvars: dict[str, Any], **groups: list[str]) -> list[str]:
    """Return what stands in the way."""
    found: list[str] = filters.slurm_refusals({**GROUPS, **groups}, {"ctl1": host(), "n1": host(), "n2": host(), **hostvars})
    return found


def test_nothing_stated_is_nothing_wrong() -> None:
    """The defaults make a cluster."""
    assert refusals({}) == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"slurm_partitions": [{"name": "main", "nodes": "nosuch"}]}, "in slurm_node there is no nosuch. Fix: name hosts"),
        ({"slurm_qos": [{"name": "high"}]}, "slurm_qos is stated and slurm_accounting has no host. Fix: put a host"),
        ({"slurm_extra_conf": {"ClusterName": "x"}}, "ClusterName is written by the role. Fix: use the role's own"),
    ],
)
def test_broken_values_are_refused(variables: dict[str, Any], words: str) -> None:
    """As the first controller has them, each with its fix."""
    (line,) = refusals({"ctl1": host(**variables)})

    assert words in line


def test_two_controllers_need_a_state_folder_that_both_share() -> None:
    """Stated, it is taken; empty, it is refused."""
    both = ["ctl1", "ctl2"]

    assert "no state folder that both share" in refusals({"ctl2": host()}, slurm_controller=both)[0]
    assert refusals({"ctl1": host(slurm_shared_state_dir="/jfs/slurm"), "ctl2": host()}, slurm_controller=both) == []


def test_releases_that_differ_are_refused() -> None:
    """Debian 12 and 13 carry Slurm 22.05 and 24.11; one host more than three is counted, not named."""
    mixed = {"ctl1": host("debian 12"), "n1": host("debian 13"), "n2": host("debian 12")}
    (line,) = refusals(mixed)

    assert "Slurm 22.05 on ctl1 (debian 12), n2 (debian 12); Slurm 24.11 on n1 (debian 13)" in line
    assert line.endswith("Fix: give all hosts of the cluster one system")


@pytest.mark.parametrize("other", ["debian 12", "rocky 9.4", "", "arch 2026"])
def test_same_or_unknown_releases_are_let_through(other: str) -> None:
    """Two systems whose packages carry one release go together; a system that is not known is no reason to refuse."""
    assert refusals({"ctl1": host("debian 12"), "n1": host(other)}) == []


def test_a_probe_that_says_nothing_is_unknown() -> None:
    """Noise in place of an answer is no system."""
    assert filters.system_of({"stdout": "connection lost"}) == ("", "")
    assert filters.system_of(None) == ("", "")


def test_a_wrong_type_is_left_to_the_specs() -> None:
    """The judgement does not fall over what the role's specs refuse anyway."""
    odd: dict[str, Any] = {"slurm_partitions": "main", "slurm_qos": [1], "slurm_users": {"a": 1}, "slurm_accounts": None}

    assert refusals({"ctl1": host(**odd, slurm_extra_conf=[])}) == []
