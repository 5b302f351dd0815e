"""The collection as a user gets it: installed from its archive, and its roles in a playbook without anything of this repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.throwaway_host_rig import run_on_throwaway_host
from tools.build_collection import ROOT, build

PROGRAMS = Path(sys.executable).parent
PLAYBOOK = """
- name: Configure a server
  hosts: all
  become: true
  roles:
    - role: primus.bootstrap.baseline
      baseline_packages: []
      baseline_unattended_upgrades_off: false # systemctl masks nothing without systemd
      baseline_hosts_file: false
    - role: primus.bootstrap.users_groups
      users_groups_accounts:
        - name: alice
          uid: 5001
          authorized_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl alice]
    - role: primus.bootstrap.host_certificate
    - role: primus.bootstrap.registry_trust
      registry_trust_registries: [{address: 'images.example.org:5000', username: robot, password: 'not-a-secret'}]

- name: Check the effects
  hosts: all
  become: true
  tasks:
    - name: Check accounts
      ansible.builtin.import_role: {name: primus.bootstrap.users_groups, tasks_from: verify}
      vars:
        users_groups_accounts: [{name: alice, uid: 5001}]
    - name: Check the certificate
      ansible.builtin.import_role: {name: primus.bootstrap.host_certificate, tasks_from: verify}
"""
HOSTS = "all: {hosts: {server1: {ansible_connection: local, ansible_python_interpreter: /usr/bin/python3}}}\n"
WRITTEN = {
    "/etc/apt/apt.conf.d/90primus": "644 root",
    "/home/alice/.ssh/authorized_keys": "600 alice",
    "/etc/primus/tls/host.key": "640 root",
    "/root/.docker/config.json": "600 root",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a playbook, and the collection beside it, installed without a network."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "site.yml").write_text(PLAYBOOK, encoding="utf-8")
    (folder / "hosts.yml").write_text(HOSTS, encoding="utf-8")
    galaxy(folder, "install", str(build(ROOT, folder / "dist")), "--offline", "-p", str(folder / "collections"))
    return folder


def galaxy(folder: Path, verb: str, *words: str) -> str:
    """Run `ansible-galaxy collection` without a configuration, and return its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {"ANSIBLE_HOME": str(folder / "home"), "ANSIBLE_COLLECTIONS_PATH": str(folder / "collections")}
    argv = [str(PROGRAMS / "ansible-galaxy"), "collection", verb, *words]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_installed_files_match_the_archive(site: Path) -> None:
    """`ansible-galaxy collection verify` compares every file with the checksums of the archive."""
    assert "Successfully verified that checksums" in galaxy(site, "verify", "primus.bootstrap", "--offline")


def test_roles_work_alone(site: Path, tmp_path: Path) -> None:
    """Roles with modules, actions, filters and shared code take effect in a playbook in an empty folder; a second run changes nothing.

    Neither this repository nor the package can be read there: only Python, Ansible and the collection.
    """
    before = [Path(path).exists() for path in WRITTEN]
    play = f"{PROGRAMS}/ansible-playbook -i hosts.yml site.yml"
    script = f"""
cp -r {site} /tmp/site
cd /tmp/site
if {PROGRAMS}/python -c 'import primus_bootstrap.core' 2> /dev/null; then exit 3; fi
export ANSIBLE_NOCOLOR=1
{play} && echo SECOND && {play}
echo FILES
stat -c '%n %a %U' {" ".join(WRITTEN)}
"""
    done = run_on_throwaway_host(tmp_path, script, shown=(site,), packages=("chrony", "kmod", "skopeo"))

    assert done.returncode == 0, done.stdout + done.stderr
    first, second = done.stdout.split("SECOND")
    assert re.search(r"server1 +: ok=\d+ +changed=[1-9]\d* .* failed=0 ", first), first
    assert re.search(r"server1 +: ok=\d+ +changed=0 .* failed=0 ", second), second
    assert second.split("FILES\n")[1].splitlines() == [f"{path} {mode}" for path, mode in WRITTEN.items()]
    assert "plugins" not in done.stderr, done.stderr
    assert [Path(path).exists() for path in WRITTEN] == before
