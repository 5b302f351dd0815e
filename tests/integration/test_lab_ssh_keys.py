"""Keys and pins of a lab."""

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
    """Lay out a lab of two nodes in a folder of its own."""
    return make_lab("lab", tmp_path, subnet=subnet_candidates("lab")[0], count=2, suites=("trixie",))


def test_keys_are_made_once_and_are_private(lab: Lab) -> None:
    """One key for the administrator, one for the person and one a node, readable by their owner alone; a second call makes none."""
    made = ensure_keys(lab)

    assert len(made) == 4
    assert ensure_keys(lab) == []
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (lab.key_file, *(host_key_file(lab, node) for node in lab.nodes)))
    assert lab.ssh_dir.stat().st_mode & 0o777 == 0o700


def test_a_half_made_pair_is_made_again(lab: Lab) -> None:
    """A key whose public half is missing, as a killed run leaves it, is replaced by a whole pair."""
    ensure_keys(lab)
    before = lab.key_file.read_text()
    lab.key_file.with_name("id_ed25519.pub").unlink()

    assert ensure_keys(lab) == ["made the key id_ed25519"]
    assert lab.key_file.read_text() != before
    derived = subprocess.run(["ssh-keygen", "-y", "-f", str(lab.key_file)], capture_output=True, text=True, timeout=120, check=True).stdout
    assert derived.split()[:2] == public_key(lab.key_file).split()


def test_fingerprints_are_what_ssh_keygen_shows(lab: Lab) -> None:
    """People compare them with what ssh prints."""
    ensure_keys(lab)
    shown = subprocess.run(["ssh-keygen", "-l", "-f", str(lab.key_file)], capture_output=True, text=True, timeout=120, check=True).stdout

    assert fingerprint(public_key(lab.key_file)) == shown.split()[1]


def test_pins_are_found_by_ssh_and_written_once(lab: Lab) -> None:
    """Every node's address has its key in known_hosts, in a form that OpenSSH reads; nothing is written twice."""
    ensure_keys(lab)

    assert pin_host_keys(lab)
    assert pin_host_keys(lab) == []
    for node in lab.nodes:
        found = subprocess.run(
            ["ssh-keygen", "-F", node.address, "-f", str(lab.known_hosts)], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        assert public_key(host_key_file(lab, node)) in found


def test_a_wrong_pin_of_a_node_is_replaced_and_others_stay(lab: Lab) -> None:
    """The lab made the keys, so it may put a pin right; lines of other hosts are not its business."""
    ensure_keys(lab)
    other = f"10.9.9.9 {public_key(lab.key_file)}"
    lab.known_hosts.write_text(f"{other}\n{lab.nodes[0].address} {public_key(lab.key_file)}\n")

    assert pin_host_keys(lab)
    lines = lab.known_hosts.read_text().splitlines()
    assert lines[0] == other
    assert sorted(lines[1:]) == [f"{node.address} {public_key(host_key_file(lab, node))}" for node in lab.nodes]
