"""`playbooks/preflight.yml` with plain ansible-playbook: which hosts stop the run if their check fails."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.engine.playbooks import groups_in, load_plays
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEAD: dict[str, Any] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
HERE: dict[str, Any] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
# This machine is every host, and only its ports are checked.
LEFT_OUT = ("os", "python", "sudo", "clock", "time_sync", "disk", "memory", "machine_id", "machine_id_unique", "mtu", "name_resolution")


@pytest.fixture
def taken() -> Iterator[int]:
    """Open a TCP port with a foreign program: this one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


def changed(
    folder: Path,
    ports: list[dict[str, Any]],
    groups: dict[str, list[str]],
    dead: tuple[str, ...] = (),
    states: dict[str, dict[str, Any]] | None = None,
) -> tuple[set[str], str]:
    """Run the phase preflight and a phase that changes every host; return the changed hosts and the output."""
    hosts = {name: DEAD if name in dead else HERE | (states or {}).get(name, {}) for members in groups.values() for name in members}
    told = {"preflight_ports": ports, "preflight_skip": [{"check": name, "reason": "one machine plays all hosts"} for name in LEFT_OUT]}
    children = {group: {"hosts": dict.fromkeys(members)} for group, members in groups.items()}
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": told, "children": children}}), encoding="utf-8")
    touch = {"ansible.builtin.file": {"path": f"{folder}/changed-{{{{ inventory_hostname }}}}", "state": "touch", "mode": "0600"}}
    plays = [
        {"ansible.builtin.import_playbook": str(content.playbooks_dir() / "preflight.yml")},
        {"hosts": "all", "gather_facts": False, "tasks": [touch]},
    ]
    (folder / "play.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
    environment = {"ANSIBLE_BECOME_METHOD": "none", "ANSIBLE_HOST_KEY_CHECKING": "False", "ANSIBLE_HOME": str(folder / "home")}
    done = run_playbook(folder / "hosts.yaml", folder / "play.yml", "-e", "ansible_become=false", environment=environment)
    return {path.name.removeprefix("changed-") for path in folder.glob("changed-*")}, done.stdout + done.stderr


def test_port_conflict_on_a_server_stops_the_run(tmp_path: Path, taken: int) -> None:
    """The message has program, port and fix. No host is changed."""
    ports = [{"port": taken, "group": "juicefs_store", "process": "nobody"}]

    # Two servers: if every host of a play fails, Ansible stops by itself.
    found, printed = changed(tmp_path, ports, {"juicefs_store": ["store"], "airgap_mirror": ["mirror"], "gpu_node": ["n1", "n2"]})

    assert found == set(), printed
    assert f"port {taken} is in use by" in printed
    assert "nobody needs it. Fix: stop that program" in printed


def test_port_conflict_on_a_compute_host_stops_that_host_only(tmp_path: Path, taken: int) -> None:
    """No other host depends on it."""
    ports = [{"port": taken, "group": "slurm_node", "process": "nobody"}]

    found, printed = changed(tmp_path, ports, {"juicefs_store": ["store"], "gpu_node": ["n1", "n2"], "slurm_node": ["n1"]})

    assert found == {"store", "n2"}, printed
    assert f"port {taken} is in use by" in printed


def test_dead_server_stops_no_other_host(tmp_path: Path, taken: int) -> None:
    """Even if it is the only one of its kind."""
    ports = [{"port": taken, "group": "juicefs_store", "process": "nobody"}]

    found, printed = changed(tmp_path, ports, {"juicefs_store": ["store"], "gpu_node": ["n1"]}, dead=("store",))

    assert found == {"n1"}, printed
    assert "UNREACHABLE" in printed


def test_groups_protected_from_removal_need_their_ports() -> None:
    """They are the groups that `node remove` refuses, except envoy and the watchers of jobs."""
    playbooks = content.playbooks_dir()
    leaving = yaml.safe_load((playbooks / "day2/node/leaving.yml").read_text(encoding="utf-8"))[0]["vars"]["_serving_groups"]
    of_kubernetes, *serving = leaving
    fatal = {group for play in load_plays(playbooks / "preflight.yml") if play.any_errors_fatal for group in groups_in(play.pattern)}

    assert {group for groups in serving for group in groups} - fatal == {"envoy", "primus_watch"}
    assert {"etcd", "kube_control_plane"} <= set(of_kubernetes) & fatal
    ports = next(play for play in load_plays(playbooks / "preflight.yml") if play.roles == ("preflight",) and "redis" in play.pattern)
    assert set(groups_in(ports.pattern)) == {group for groups in serving for group in groups} - {"envoy", "primus_watch"}
    assert ports.any_errors_fatal


def test_host_slower_than_the_limit_is_reported_with_the_limit(tmp_path: Path) -> None:
    """It drops out with the variable that raises the limit; the other host continues."""
    slow = tmp_path / "slow-python"
    slow.write_text(f'#!/bin/sh\nsleep 20\nexec {sys.executable} "$@"\n', encoding="utf-8")
    slow.chmod(0o755)
    states = {"n1": {"ansible_python_interpreter": str(slow), "preflight_timeout_s": 3}}

    found, printed = changed(tmp_path, [], {"gpu_node": ["n1", "n2"]}, states=states)

    assert found == {"n2"}, printed
    assert "no answer within 3 s (preflight_timeout_s). Fix:" in printed
    assert "set preflight_timeout_s to more seconds" in printed
