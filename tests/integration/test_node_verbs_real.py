"""`node add`, `node remove` and `node replace` with hosts that do not answer, and with a real sshd."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap.cli.node_changes import accept_key
from primus_bootstrap.engine.hostkeys import pin_host_keys, pinned_key
from primus_bootstrap.engine.run import Options
from primus_bootstrap.inventory.edit.draft import write_draft
from primus_bootstrap.inventory.load import load_cluster
from tests.integration.sshd_rig import PrivateSshd, has_sshd
from tests.playbooks import one_line, run_playbook
from tests.unit.engine_rig import free_port
from tests.unit.test_node_verbs import CLUSTER, node, refused
from tests.unit.test_node_verbs import hosts as hosts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def test_removing_a_host_that_does_not_answer_is_an_error(hosts: Path) -> None:
    """The error comes before the drain, with the way to remove a dead host."""
    error = refused("remove", hosts, "odd9", "--confirm", "small")

    assert "odd9 does not answer" in error.what
    assert "--dead" in error.fix
    assert hosts.read_text() == CLUSTER


def test_the_old_host_stays_if_the_new_one_does_not_answer(hosts: Path) -> None:
    """Nothing is drained or stopped, and hosts.yaml has both hosts."""
    output = node("replace", hosts, "gpu01", "new10", "--host", "127.0.0.10", "--confirm", "small", "--dead", "--json")
    report = json.loads(output[output.index("{\n") :])

    assert report["exit_code"] == 4
    assert {phase["phase"] for phase in report["phases"] if phase["state"] != "not_reached"} == {"preflight"}
    assert {"gpu01", "new10"} <= set(load_cluster(hosts).groups["gpu_node"])


def test_a_reinstalled_host_must_answer(hosts: Path) -> None:
    """Otherwise its key is unknown, and the pinned key stays."""
    assert "so its host key is unknown" in refused("replace", hosts, "odd9", "odd9").what


@pytest.fixture
def reinstalled(tmp_path: Path) -> Iterator[tuple[Path, PrivateSshd]]:
    """Return a cluster with one host behind a real sshd, whose key is not the pinned one."""
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


def test_a_new_host_key_is_pinned_if_it_is_confirmed(reinstalled: tuple[Path, PrivateSshd]) -> None:
    """A wrong key, or none, changes nothing. The right key is pinned and written to host_key in hosts.yaml."""
    path, sshd = reinstalled
    cluster = load_cluster(path)
    before = pinned_key(cluster, "n1")

    assert "is not the one in --host-key" in refused("replace", path, "n1", "n1", "--host-key", before).what
    assert f"--host-key '{sshd.public_key}'" in refused("replace", path, "n1", "n1").fix
    assert pinned_key(cluster, "n1") == before

    change = accept_key(cluster, "n1", Options(), address="", expected=sshd.public_key)

    assert pinned_key(cluster, "n1") == sshd.public_key
    assert change.before
    assert change.before.cluster.connection("n1").host_key == sshd.public_key
    write_draft(change.before)
    assert accept_key(load_cluster(path), "n1", Options(), address="", expected="").before is None


def _ansible(hosts: Path, playbook: str, *arguments: str) -> str:
    done = run_playbook(hosts, f"day2/node/{playbook}", *arguments)
    assert done.returncode != 0
    return one_line(done)


@pytest.mark.parametrize(
    ("playbook", "arguments", "message"),
    [
        ("named.yml", [], "hosts.yaml has no host (none given)"),
        ("named.yml", ["-e", "node=gpu99"], "hosts.yaml has no host gpu99"),
        ("leaving.yml", ["-e", "node=odd9"], "is not confirmed. Fix: pass -e confirm=<cluster_name>"),
        ("leaving.yml", ["-e", "node=ctl1", "-e", "confirm=small"], "Other hosts depend on ctl1: it is in slurm_controller"),
        ("named.yml", ["-e", "node=gpu01", "-e", "old=gpu98", "-e", "confirm=small"], "hosts.yaml has no host gpu98"),
    ],
)
def test_the_playbooks_have_the_same_checks(hosts: Path, playbook: str, arguments: Sequence[str], message: str) -> None:
    """Their first plays fail and contact only the controller."""
    output = _ansible(hosts, playbook, *arguments)

    assert message in output
    assert "UNREACHABLE" not in output
