"""The real Ansible reads the same from a snapshot as from the original."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.run import Options, apply_plan
from primus_bootstrap.inventory.load import load_cluster
from primus_bootstrap.inventory.snapshot import file_sums, plugin_settings, take_snapshot
from tests.unit.engine_rig import local_hosts_yaml, write_playbooks

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAMS = Path(sys.executable).parent
SECRET = "hush-hush"
HOSTS = local_hosts_yaml("g1")
USE = f"""---
- name: Use the secret
  hosts: gpu_node
  gather_facts: false
  tasks:
    - name: Read a secret from a Vault file
      ansible.builtin.assert:
        that: site_secret == '{SECRET[:4]}' ~ '{SECRET[4:]}'
        quiet: true
    - name: Copy the folder of the inventory
      ansible.builtin.command: cp -r {{{{ ansible_inventory_sources[0] | dirname }}}} {{{{ inventory_dir }}}}/copy
      changed_when: true
"""


def listed(path: Path, environment: Mapping[str, str]) -> str:
    """Return the output of `ansible-inventory --list`."""
    settings = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg()), **environment}
    argv = [str(PROGRAMS / "ansible-inventory"), "-i", str(path), "--list"]
    done = subprocess.run(argv, env=settings, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("topology", ["lab", "h200-slurm"])
def test_ansible_reads_the_same_from_a_snapshot(topology: str, tmp_path: Path) -> None:
    """Hosts, groups and variables are the same, and in the same order."""
    hosts = content.topologies_dir() / topology / "hosts.yaml"
    copy = take_snapshot(hosts, tmp_path / "copy", file_sums(hosts))

    assert listed(copy, plugin_settings()) == listed(hosts, {})


def test_the_plugin_ignores_a_file_that_is_not_a_snapshot(tmp_path: Path) -> None:
    """Without .primus-source the plugin does not read the file."""
    (tmp_path / "hosts.yaml").write_text(HOSTS, encoding="utf-8")

    assert "g1" not in listed(tmp_path / "hosts.yaml", plugin_settings())


def test_a_vault_file_stays_encrypted_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run reads the secret, and the file in its snapshot is encrypted."""
    password = tmp_path / "password"
    password.write_text("of-the-vault\n", encoding="utf-8")
    vault_file = tmp_path / "site" / "group_vars" / "all" / "vault.yml"
    vault_file.parent.mkdir(parents=True)
    vault_file.write_text(f"site_secret: {SECRET}\n", encoding="utf-8")
    argv = [str(PROGRAMS / "ansible-vault"), "encrypt", "--vault-password-file", str(password), str(vault_file)]
    subprocess.run(argv, capture_output=True, timeout=120, check=True)
    (tmp_path / "site" / "hosts.yaml").write_text(HOSTS, encoding="utf-8")
    playbooks = write_playbooks(tmp_path, {"use": USE})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    cluster = load_cluster(tmp_path / "site" / "hosts.yaml", vault_password_file=password)
    options = Options(vault_password_file=password)

    report = apply_plan(cluster, make_plan(cluster), options, on_event=lambda _: None, cancel=threading.Event())

    assert report.exit_code == 0, report
    copy = tmp_path / "site" / "copy"
    assert (copy / "group_vars" / "all" / "vault.yml").read_bytes() == vault_file.read_bytes()
    readable = [path for path in (tmp_path / "site").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert readable == []
