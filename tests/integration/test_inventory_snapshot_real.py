"""A snapshot of the inventory, read by the real Ansible: it says the same as the original, and secrets are where they were."""

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
- name: Use
  hosts: gpu_node
  gather_facts: false
  tasks:
    - name: Read a secret from a Vault file
      ansible.builtin.assert:
        that: site_secret == '{SECRET[:4]}' ~ '{SECRET[4:]}'
        quiet: true
    - name: Copy what the run has
      ansible.builtin.command: cp -r {{{{ ansible_inventory_sources[0] | dirname }}}} {{{{ inventory_dir }}}}/seen
      changed_when: true
"""


def listed(path: Path, environment: Mapping[str, str]) -> str:
    """Return what `ansible-inventory --list` prints."""
    settings = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg()), **environment}
    argv = [str(PROGRAMS / "ansible-inventory"), "-i", str(path), "--list"]
    done = subprocess.run(argv, env=settings, capture_output=True, text=True, errors="replace", timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("topology", ["lab", "h200-slurm"])
def test_a_snapshot_of_a_shipped_inventory_says_the_same(topology: str, tmp_path: Path) -> None:
    """Hosts, groups and every variable, those of `group_vars` included, in the same order."""
    hosts = content.topologies_dir() / topology / "hosts.yaml"
    copy = take_snapshot(hosts, tmp_path / "copy", file_sums(hosts))

    assert listed(copy, plugin_settings()) == listed(hosts, {})


def test_the_plugin_refuses_a_file_that_is_no_snapshot(tmp_path: Path) -> None:
    """Without the name of the original, `inventory_dir` would be another folder: the file is not read at all."""
    (tmp_path / "hosts.yaml").write_text(HOSTS, encoding="utf-8")

    assert "g1" not in listed(tmp_path / "hosts.yaml", plugin_settings())


def test_a_vault_file_stays_encrypted_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run reads the secret, and its copy of the file, which only this user can read, is the encrypted one."""
    password = tmp_path / "password"
    password.write_text("of-the-vault\n", encoding="utf-8")
    sealed = tmp_path / "site" / "group_vars" / "all" / "vault.yml"
    sealed.parent.mkdir(parents=True)
    sealed.write_text(f"site_secret: {SECRET}\n", encoding="utf-8")
    argv = [str(PROGRAMS / "ansible-vault"), "encrypt", "--vault-password-file", str(password), str(sealed)]
    subprocess.run(argv, capture_output=True, timeout=120, check=True)
    (tmp_path / "site" / "hosts.yaml").write_text(HOSTS, encoding="utf-8")
    playbooks = write_playbooks(tmp_path, {"use": USE})
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    cluster = load_cluster(tmp_path / "site" / "hosts.yaml", vault_password_file=password)
    options = Options(vault_password_file=password)

    report = apply_plan(cluster, make_plan(cluster), options, on_event=lambda _: None, cancel=threading.Event())

    assert report.exit_code == 0, report
    seen = tmp_path / "site" / "seen"
    assert (seen / "group_vars" / "all" / "vault.yml").read_bytes() == sealed.read_bytes()
    kept = [path for path in (tmp_path / "site").rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert kept == []
