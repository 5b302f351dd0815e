"""Host keys against a real sshd."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.hostkeys import fingerprint, forget_host_keys, key_conflicts, pin_host_keys, without_hosts
from primus_bootstrap.engine.ssh import known_hosts_path, ssh_arguments
from tests.integration.sshd_rig import PrivateSshd, has_sshd, make_key
from tests.unit.engine_rig import free_port, make_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not has_sshd(), reason="needs root and /usr/sbin/sshd (Debian: openssh-server)")


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[PrivateSshd]:
    """Run an sshd."""
    folder = tmp_path / "sshd"
    folder.mkdir()
    server = PrivateSshd(folder, free_port())
    server.start()
    yield server
    server.stop()


def test_first_contact_pins_the_key_of_the_host(tmp_path: Path, sshd: PrivateSshd) -> None:
    """The fingerprint is the one that ssh-keygen prints."""
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": sshd.variables()})

    pins = pin_host_keys(cluster, ("a",))

    shown = subprocess.run(["ssh-keygen", "-l", "-f", str(sshd.folder / "host_key.pub")], capture_output=True, text=True, check=True).stdout
    assert [(pin.host, pin.address, pin.key_type, pin.source) for pin in pins] == [("a", "127.0.0.1", "ssh-ed25519", "first contact")]
    assert pins[0].fingerprint == shown.split()[1]
    assert f"[127.0.0.1]:{sshd.port} {sshd.public_key}" in known_hosts_path(cluster).read_text(encoding="utf-8")
    assert known_hosts_path(cluster).stat().st_mode & 0o777 == 0o600


def test_a_pinned_host_is_not_contacted_again(tmp_path: Path, sshd: PrivateSshd) -> None:
    """The second call pins nothing, even if the host has another key now."""
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": sshd.variables()})
    pin_host_keys(cluster, ("a",))
    before = known_hosts_path(cluster).read_text(encoding="utf-8")
    sshd.change_host_key()

    assert pin_host_keys(cluster, ("a",)) == ()
    assert known_hosts_path(cluster).read_text(encoding="utf-8") == before


def test_a_host_that_does_not_answer_is_not_pinned(tmp_path: Path) -> None:
    """There is no error: the run reports the host as unreachable."""
    variables = {"ansible_host": "127.0.0.1", "ansible_port": free_port()}
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": variables})

    assert pin_host_keys(cluster, ("a",)) == ()


def test_host_key_of_the_inventory_is_pinned_without_contact(tmp_path: Path) -> None:
    """The host does not need to answer."""
    make_key(tmp_path / "key")
    key = (tmp_path / "key.pub").read_text(encoding="utf-8")
    variables = {"ansible_host": "127.0.0.1", "ansible_port": free_port(), "host_key": key}
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": variables})

    pins = pin_host_keys(cluster, ("a",))

    assert [(pin.host, pin.fingerprint, pin.source) for pin in pins] == [("a", fingerprint(key.split()[1]), "hosts.yaml")]


def test_a_host_key_that_differs_from_the_pin_is_a_conflict(tmp_path: Path, sshd: PrivateSshd) -> None:
    """The conflict has both fingerprints, and its fix removes the old pin."""
    cluster = make_cluster(tmp_path, {"gpu_node": ["a", "b"]}, {"a": sshd.variables(), "b": {"ansible_connection": "local"}})
    pin_host_keys(cluster, ("a", "b"))
    make_key(tmp_path / "other")
    other = (tmp_path / "other.pub").read_text(encoding="utf-8")
    changed = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": {**sshd.variables(), "host_key": other}})

    (conflict,) = key_conflicts(changed, ("a",))

    assert conflict.host == "a"
    assert fingerprint(other.split()[1]) in conflict.what
    assert fingerprint(sshd.public_key.split()[1]) in conflict.what
    assert f"ssh-keygen -f {known_hosts_path(cluster)} -R '[127.0.0.1]:{sshd.port}'" in conflict.fix
    assert "a@" not in without_hosts(changed, ["a"], tmp_path / "copy").read_text(encoding="utf-8")


def test_an_alias_of_ssh_config_is_pinned_under_the_name_that_ssh_looks_up(tmp_path: Path, sshd: PrivateSshd) -> None:
    """A host that only ssh_config knows is found again."""
    config = tmp_path / "ssh_config"
    config.write_text(f"Host a\n  HostName 127.0.0.1\n  Port {sshd.port}\n", encoding="utf-8")
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": {"ansible_ssh_common_args": f"-F {config}"}})

    assert len(pin_host_keys(cluster, ("a",))) == 1
    assert known_hosts_path(cluster).read_text(encoding="utf-8").startswith(f"[127.0.0.1]:{sshd.port} ")
    assert pin_host_keys(cluster, ("a",)) == ()


def test_a_host_behind_a_bastion_is_pinned_through_the_bastion(tmp_path: Path, sshd: PrivateSshd) -> None:
    """The first contact uses the ProxyCommand from the inventory."""
    folder = tmp_path / "bastion"
    folder.mkdir()
    bastion = PrivateSshd(folder, free_port())
    bastion.start()
    jump = f"ssh -i {folder}/user_key -p {bastion.port} -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -W %h:%p 127.0.0.1"
    variables = {**sshd.variables(), "ansible_ssh_common_args": f'-o ProxyCommand="{jump}"'}
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": variables})

    pins = pin_host_keys(cluster, ("a",))
    bastion.stop()

    assert [pin.fingerprint for pin in pins] == [fingerprint(sshd.public_key.split()[1])]


def test_ssh_arguments_log_in_and_refuse_a_changed_key(tmp_path: Path, sshd: PrivateSshd) -> None:
    """The command line of the verb `ssh` accepts only the pinned key. The inventory cannot disable the check."""
    softened = {**sshd.variables(), "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"}
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": softened})
    pin_host_keys(cluster, ("a",))
    command = [*ssh_arguments(cluster, "a"), "echo", "in"]

    first = subprocess.run(command, capture_output=True, text=True, check=False)
    sshd.change_host_key()
    second = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (first.returncode, first.stdout) == (0, "in\n")
    assert second.returncode == 255
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in second.stderr


def test_a_forgotten_host_is_pinned_again(tmp_path: Path, sshd: PrivateSshd) -> None:
    """After `forget_host_keys` the host's current key is pinned. The user's own lines stay."""
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": sshd.variables()})
    user_lines = f"# ours\n@cert-authority *.example {sshd.public_key}\n"
    known_hosts_path(cluster).parent.mkdir(parents=True)
    known_hosts_path(cluster).write_text(user_lines, encoding="utf-8")
    (old,) = pin_host_keys(cluster, ("a",))
    sshd.change_host_key()

    forget_host_keys(cluster, ("a",))
    (new,) = pin_host_keys(cluster, ("a",))

    assert old.fingerprint != new.fingerprint
    assert known_hosts_path(cluster).read_text(encoding="utf-8").startswith(user_lines)


def new_key(folder: Path, name: str) -> str:
    """Create a key and return its public part."""
    make_key(folder / name)
    return (folder / f"{name}.pub").read_text(encoding="utf-8")


def test_a_corrected_host_key_replaces_the_wrong_one(tmp_path: Path) -> None:
    """A pinned key from hosts.yaml follows hosts.yaml, without a conflict."""
    reach = {"ansible_host": "127.0.0.1", "ansible_port": free_port()}
    wrong, right = new_key(tmp_path, "wrong"), new_key(tmp_path, "right")
    pin_host_keys(make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": {**reach, "host_key": wrong}}), ("a",))
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": {**reach, "host_key": right}})

    pins = pin_host_keys(cluster, ("a",))

    written = known_hosts_path(cluster).read_text(encoding="utf-8")
    assert [(pin.host, pin.fingerprint, pin.source) for pin in pins] == [("a", fingerprint(right.split()[1]), "hosts.yaml")]
    assert (right.split()[1] in written, wrong.split()[1] in written) == (True, False)
    assert key_conflicts(cluster, ("a",)) == ()
    assert pin_host_keys(cluster, ("a",)) == ()


def test_a_pin_of_first_contact_is_never_replaced(tmp_path: Path, sshd: PrivateSshd) -> None:
    """If `host_key` differs from a key of the first contact, this is a conflict."""
    pin_host_keys(make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": sshd.variables()}), ("a",))
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": {**sshd.variables(), "host_key": new_key(tmp_path, "other")}})

    assert pin_host_keys(cluster, ("a",)) == ()
    assert [conflict.host for conflict in key_conflicts(cluster, ("a",))] == ["a"]


def test_bytes_that_are_not_utf8_are_preserved(tmp_path: Path) -> None:
    """A comment in another encoding is not changed."""
    variables = {"ansible_host": "127.0.0.1", "ansible_port": free_port(), "host_key": new_key(tmp_path, "key")}
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": variables})
    known_hosts_path(cluster).parent.mkdir(parents=True)
    known_hosts_path(cluster).write_bytes(b"# M\xfcnchen\n")

    assert len(pin_host_keys(cluster, ("a",))) == 1
    assert known_hosts_path(cluster).read_bytes().startswith(b"# M\xfcnchen\n[127.0.0.1]:")
    assert key_conflicts(cluster, ("a",)) == ()


def test_an_unreadable_known_hosts_file_is_a_plan_error(tmp_path: Path) -> None:
    """The error has path and cause."""
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": {"host_key": new_key(tmp_path, "key")}})
    cluster.state_dir.parent.mkdir(exist_ok=True)
    cluster.state_dir.write_text("no folder", encoding="utf-8")

    with pytest.raises(PlanError, match=r"cannot use .*: "):
        pin_host_keys(cluster, ("a",))
