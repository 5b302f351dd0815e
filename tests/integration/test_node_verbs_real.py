"""`node add`, `node remove`, `node replace` as a user types them, up to the first host that would be touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.cli.node_changes import accept_key
from primus_bootstrap.engine.hostkeys import pin_host_keys, pinned_key
from primus_bootstrap.engine.run import Options
from primus_bootstrap.inventory.edit.draft import write_draft
from primus_bootstrap.inventory.load import load_cluster
from tests.unit.engine_rig import PrivateSshd, free_port, has_sshd
from tests.unit.test_node_verbs import CLUSTER, node, refused
from tests.unit.test_node_verbs import hosts as hosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def test_a_silent_host_is_not_waited_for(hosts: Path) -> None:
    """Nothing listens there: said before anything is drained, with the way to remove a dead host."""
    error = refused("remove", hosts, "odd9", "--confirm", "small")

    assert "odd9 does not answer" in error.what
    assert "--dead" in error.fix
    assert hosts.read_text() == CLUSTER


def test_the_old_host_stays_where_the_new_one_does_not_come(hosts: Path) -> None:
    """The new host does not answer: nothing is drained, forgotten or stopped after it, and hosts.yaml has both."""
    output = node("replace", hosts, "gpu01", "new10", "--host", "127.0.0.10", "--confirm", "small", "--dead", "--json")
    report = json.loads(output[output.index("{\n") :])

    assert report["exit_code"] == 4
    assert {phase["phase"] for phase in report["phases"] if phase["state"] != "not_reached"} == {"preflight"}
    assert {"gpu01", "new10"} <= set(load_cluster(hosts).groups["gpu_node"])


def test_a_reinstalled_host_must_show_its_key(hosts: Path) -> None:
    """A host that does not answer shows none, and the pinned one stays."""
    assert "so its host key is unknown" in refused("replace", hosts, "odd9", "odd9").what


@pytest.fixture
def reinstalled(tmp_path: Path) -> Iterator[tuple[Path, PrivateSshd]]:
    """A cluster of one host behind a real sshd, whose key was pinned and is another one by now."""
    if not has_sshd():
        pytest.skip("needs root and /usr/sbin/sshd (Debian: openssh-server)")
    sshd = PrivateSshd(tmp_path, free_port())
    sshd.start()
    path = tmp_path / "hosts.yaml"
    variables = {**sshd.variables(), "host_key": sshd.public_key}
    inventory = {"all": {"vars": {"cluster_name": "one"}, "children": {"gpu_node": {"hosts": {"n1": variables}}}}}
    path.write_text(yaml.safe_dump(inventory), encoding="utf-8")
    pin_host_keys(load_cluster(path), ("n1",))
    sshd.change_host_key()
    yield path, sshd
    sshd.stop()


def test_a_new_host_key_is_pinned_where_somebody_vouches_for_it(reinstalled: tuple[Path, PrivateSshd]) -> None:
    """Another key than the one shown, or none, changes nothing; the right one is pinned, and host_key in hosts.yaml follows."""
    path, sshd = reinstalled
    cluster = load_cluster(path)
    before = pinned_key(cluster, "n1")

    assert "another key" in refused("replace", path, "n1", "n1", "--host-key", before).what
    assert f"--host-key '{sshd.public_key}'" in refused("replace", path, "n1", "n1").fix
    assert pinned_key(cluster, "n1") == before

    change = accept_key(cluster, "n1", Options(), address="", expected=sshd.public_key)

    assert pinned_key(cluster, "n1") == sshd.public_key
    assert change.before
    assert change.before.cluster.connection("n1").host_key == sshd.public_key
    write_draft(change.before)
    assert accept_key(load_cluster(path), "n1", Options(), address="", expected="").before is None


def _ansible(hosts: Path, playbook: str, *arguments: str) -> str:
    argv = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        str(hosts),
        str(content.playbooks_dir() / "day2/node" / playbook),
    ]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg()), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run([*argv, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("playbook", "arguments", "said"),
    [
        ("named.yml", [], "hosts.yaml has no host (none given)"),
        ("named.yml", ["-e", "node=gpu99"], "hosts.yaml has no host gpu99"),
        ("leaving.yml", ["-e", "node=odd9"], "that is not confirmed. Fix: -e confirm=<cluster_name>"),
        ("leaving.yml", ["-e", "node=ctl1", "-e", "confirm=small"], "ctl1 serves others: it is in slurm_controller"),
        ("named.yml", ["-e", "node=gpu01", "-e", "old=gpu98", "-e", "confirm=small"], "hosts.yaml has no host gpu98"),
    ],
)
def test_plain_ansible_refuses_before_a_host_is_touched(hosts: Path, playbook: str, arguments: Sequence[str], said: str) -> None:
    """The same refusals without primus-bootstrap, by the plays with which its playbooks begin; only the controller was asked anything."""
    output = _ansible(hosts, playbook, *arguments)

    assert said in output
    assert "UNREACHABLE" not in output
