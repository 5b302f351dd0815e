"""Test the keys and the known_hosts file of a lab."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.lab_values import Lab, make_lab, subnet_candidates
from primus_bootstrap.lab.ssh_keys import ensure_keys, fingerprint, host_key_file, pin_host_keys, public_key

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Return a lab of two nodes in a temporary folder."""
    return make_lab("lab", tmp_path, subnet=subnet_candidates("lab")[0], count=2, suites=("trixie",))


def test_keys_are_generated_once_and_are_private(lab: Lab) -> None:
    """One key each for the administrator, the user and every node, with mode 0600. A second call generates none."""
    changes = ensure_keys(lab)

    assert len(changes) == 4
    assert ensure_keys(lab) == []
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (lab.key_file, *(host_key_file(lab, node) for node in lab.nodes)))
    assert lab.ssh_dir.stat().st_mode & 0o777 == 0o700


def test_incomplete_pair_is_replaced(lab: Lab) -> None:
    """A private key without its public key, which an interrupted run leaves, is replaced by a new pair."""
    ensure_keys(lab)
    before = lab.key_file.read_text()
    lab.key_file.with_name("id_ed25519.pub").unlink()

    assert ensure_keys(lab) == ["created the SSH key id_ed25519"]
    assert lab.key_file.read_text() != before
    derived = subprocess.run(["ssh-keygen", "-y", "-f", str(lab.key_file)], capture_output=True, text=True, timeout=120, check=True).stdout
    assert derived.split()[:2] == public_key(lab.key_file).split()


def test_fingerprint_equals_that_of_ssh_keygen(lab: Lab) -> None:
    """The fingerprint has the format of `ssh-keygen -l`."""
    ensure_keys(lab)
    shown = subprocess.run(["ssh-keygen", "-l", "-f", str(lab.key_file)], capture_output=True, text=True, timeout=120, check=True).stdout

    assert fingerprint(public_key(lab.key_file)) == shown.split()[1]


def test_pinned_keys_are_found_by_ssh_and_written_once(lab: Lab) -> None:
    """`ssh-keygen -F` finds every node's key in known_hosts. A second call changes nothing."""
    ensure_keys(lab)

    assert pin_host_keys(lab)
    assert pin_host_keys(lab) == []
    for node in lab.nodes:
        found = subprocess.run(
            ["ssh-keygen", "-F", node.address, "-f", str(lab.known_hosts)], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        assert public_key(host_key_file(lab, node)) in found


def test_wrong_key_of_a_node_is_replaced(lab: Lab) -> None:
    """A wrong key of a node is replaced; lines of other hosts stay."""
    ensure_keys(lab)
    other = f"10.9.9.9 {public_key(lab.key_file)}"
    lab.known_hosts.write_text(f"{other}\n{lab.nodes[0].address} {public_key(lab.key_file)}\n")

    assert pin_host_keys(lab)
    lines = lab.known_hosts.read_text().splitlines()
    assert lines[0] == other
    assert sorted(lines[1:]) == [f"{node.address} {public_key(host_key_file(lab, node))}" for node in lab.nodes]
