"""Valid inventories that are similar to broken ones must have no problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from primus_bootstrap.inventory import find_problems
from primus_bootstrap.inventory.rules import hosts
from tests.unit.inventory_rig import DATA, demo_content, write_inventory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VALID: dict[str, str] = yaml.safe_load((DATA / "valid_inventories.yml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def _demo_role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch, demo_content(tmp_path_factory.mktemp("content"), monkeypatch):
        yield


@pytest.mark.parametrize("name", VALID)
def test_valid_inventory_has_no_problems(tmp_path: Path, name: str) -> None:
    """No rule reports a problem for a valid inventory."""
    assert find_problems(write_inventory(tmp_path / "site", VALID[name])) == ()


def test_required_variable_may_be_in_an_encrypted_file(tmp_path: Path) -> None:
    """Hosts whose variable files cannot be decrypted are not checked; other hosts are."""
    hosts = "spare: {hosts: {n1: , n2: }}\n"
    encrypted = "$ANSIBLE_VAULT;1.1;AES256\n6162\n"

    for_group = find_problems(write_inventory(tmp_path / "group", hosts, **{"group_vars__spare.yml": encrypted}))
    for_host = find_problems(write_inventory(tmp_path / "host", hosts, **{"host_vars__n1.yml": encrypted}))

    assert for_group == ()
    assert [problem.what for problem in for_host] == ["demo_url is not set for n2, and role demo requires it"]


def test_misspelt_host_in_a_large_fleet(tmp_path: Path) -> None:
    """Among 2,000 hosts, only the one that is misspelt in a group is reported."""
    address = "10.0.{{ inventory_hostname[3:] | int // 250 }}.{{ inventory_hostname[3:] | int % 250 + 1 }}"
    hosts = f"gpu_node: {{hosts: {{'gpu[0001:2000]': {{ansible_host: '{address}'}}}}}}\n"
    hosts += "slurm_controller: {hosts: {ctl: {ansible_host: 10.9.9.9}}}\nslurm_node: {hosts: {gpu00002: }}\n"
    hosts += "all: {vars: {munge_key: \"{{ lookup('ansible.builtin.env', 'KEY') }}\"}}\n"

    (problem,) = find_problems(write_inventory(tmp_path / "site", hosts))

    assert problem.rule == "near-host"
    assert "gpu00002 has no address, and its name differs by one letter from gpu0002" in problem.what


@given(st.text("ab1", min_size=1, max_size=6), st.text("ab1", max_size=6))
def test_names_that_differ_by_one_letter(one: str, other: str) -> None:
    """The result is the same as from trying every change of one letter, in both orders of the names."""
    letters = "ab1"
    variants = {one[:i] + letter + one[i:] for i in range(len(one) + 1) for letter in letters}
    variants |= {one[:i] + letter + one[i + 1 :] for i in range(len(one)) for letter in ("", *letters)}
    variants |= {one[:i] + one[i + 1] + one[i] + one[i + 2 :] for i in range(len(one) - 1)}

    assert hosts._differ_by_one_letter(one, other) == hosts._differ_by_one_letter(other, one) == (other in variants - {one})
