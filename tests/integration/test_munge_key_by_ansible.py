"""The preflight of the role munge with plain ansible-playbook: which hosts accept another munge key."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from pathlib import Path

HERE: dict[str, Any] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
# Port 1 of this machine refuses connections, so SSH fails at once.
DEAD: dict[str, Any] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
FORMER, STATED = "former-key-0123456789-0123456789-01", "stated-key-0123456789-0123456789-01"
LONG = pytest.mark.long("roles/munge", "playbooks/vars/munge.yml")


def accepting_hosts(folder: Path, keys: dict[str, str], *words: str, dead: str = "", serving: bool = True) -> set[str]:
    """Return the hosts that would accept the configured key; `keys` are the current keys, and `dead` does not answer."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "systemctl").write_text(f"#!/bin/sh\necho {'active' if serving else 'inactive'}\n", encoding="utf-8")
    (programs / "systemctl").chmod(0o755)
    for host, key in keys.items():
        (folder / host).write_text(key, encoding="utf-8")
    # If a task queries another host, `item` is its name.
    key_file = f"{folder}/{{{{ item | default(inventory_hostname) }}}}"
    variables = {"munge_key": STATED, "_munge_key_file": key_file, "_munge_applied": f"{folder}/none"}
    step = {"ansible.builtin.import_role": {"name": "munge", "tasks_from": "preflight"}}
    done = {"ansible.builtin.debug": {"msg": "would take it: {{ inventory_hostname }}."}}
    vars_files = [str(content.playbooks_dir() / "vars" / "munge.yml")]
    plays = [{"hosts": "all", "gather_facts": False, "vars_files": vars_files, "tasks": [step, done]}]
    (folder / "play.yml").write_text(json.dumps(plays), encoding="utf-8")
    hosts = {host: DEAD if host == dead else HERE for host in keys}
    groups = {"slurm_controller": ["ctl1", "ctl2"], "slurm_accounting": ["db1"], "slurm_node": ["n1"]}
    children: dict[str, Any] = {name: {"hosts": {host: {} for host in members if host in keys}} for name, members in groups.items()}
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "children": children}}), encoding="utf-8")
    environment = {
        "ANSIBLE_SSH_RETRIES": "0", "PATH": f"{programs}:{os.environ['PATH']}",
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"), "ANSIBLE_HOME": str(folder / "home"),
    }  # fmt: skip
    said = run_playbook(folder / "hosts.json", folder / "play.yml", "-e", json.dumps(variables), *words, environment=environment).stdout
    assert not [key for key in (FORMER, STATED) if key in said]
    took = {host for host in keys if f"would take it: {host}." in said}
    refused = {host for host in keys if host != dead and f"{host} runs Slurm with another munge_key" in " ".join(said.split())}
    assert not took & refused
    assert took | refused == {host for host in keys if host != dead and (not words or host in words)}, said
    return took


def all_with(key: str, **other: str) -> dict[str, str]:
    """Return a key for all hosts, with exceptions."""
    return {**dict.fromkeys(("ctl1", "ctl2", "db1", "n1"), key), **other}


@pytest.mark.parametrize("dead", ["ctl1", "ctl2", "db1"])
@LONG
def test_no_host_accepts_another_key_without_all_servers(tmp_path: Path, dead: str) -> None:
    """With different keys, nodes would be down within minutes and their jobs be requeued."""
    assert accepting_hosts(tmp_path, all_with(FORMER), dead=dead) == set()


def test_all_hosts_accept_it_if_all_answer(tmp_path: Path) -> None:
    """This is a key rotation."""
    assert accepting_hosts(tmp_path, all_with(FORMER)) == {"ctl1", "ctl2", "db1", "n1"}


@LONG
def test_single_host_keeps_its_key(tmp_path: Path) -> None:
    """With --limit the controllers are not in the run and keep the old key."""
    assert accepting_hosts(tmp_path, all_with(FORMER), "--limit", "n1") == set()


@pytest.mark.parametrize("dead", ["", "ctl1"])
@LONG
def test_single_host_accepts_the_key_of_a_controller(tmp_path: Path, dead: str) -> None:
    """This repairs a host with a wrong key, even if another server does not answer."""
    assert accepting_hosts(tmp_path, all_with(STATED, n1=FORMER), "--limit", "n1", dead=dead) == {"n1"}


@LONG
def test_single_host_keeps_its_key_without_a_controller(tmp_path: Path) -> None:
    """No controller is known to have the configured key."""
    assert accepting_hosts(tmp_path, {"ctl1": STATED, "n1": FORMER}, "--limit", "n1", dead="ctl1") == set()


def test_dead_compute_node_does_not_block_a_rotation(tmp_path: Path) -> None:
    """A later run changes its key."""
    assert accepting_hosts(tmp_path, all_with(FORMER), dead="n1") == {"ctl1", "ctl2", "db1"}


@LONG
def test_returned_host_accepts_the_key_of_a_controller(tmp_path: Path) -> None:
    """The rotation is complete; a dead backup controller does not block the node."""
    assert accepting_hosts(tmp_path, all_with(STATED, n1=FORMER), dead="ctl2") == {"ctl1", "db1", "n1"}


@LONG
def test_host_without_slurm_accepts_the_key(tmp_path: Path) -> None:
    """A new node has a key of its package, which no service uses."""
    assert accepting_hosts(tmp_path, all_with(FORMER), "--limit", "n1", serving=False) == {"n1"}
