"""Test that Ansible evaluates the lab's hosts.yaml as intended."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.lab.hosts_file import ensure_hosts_file
from tests.unit.test_lab_hosts_file import ANY, a_lab

if TYPE_CHECKING:
    from primus_bootstrap.lab.lab_values import Lab


def look_up(lab: Lab, words: str) -> str:
    """Return Ansible's result for an expression on the lab's first host, without contacting it."""
    ansible = shutil.which("ansible", path=str(Path(sys.executable).parent))
    assert ansible, "the package depends on ansible"
    done = subprocess.run(
        [ansible, "-i", str(lab.hosts_file), "node1", "-c", "local", "-m", "ansible.builtin.debug", "-a", f"msg={words!r}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(json.loads(done.stdout.partition("=>")[2])["msg"])


def test_secrets_are_generated_once_outside_of_the_file(tmp_path: Path) -> None:
    """The first lookup creates the secret with mode 0600 in a folder with mode 0700; hosts.yaml does not contain it."""
    lab = a_lab(tmp_path / "my lab")
    ensure_hosts_file(lab, ANY)
    first, again = (look_up(lab, "{{ redis_password }}") for _ in range(2))
    path = lab.lab_state / "secrets/redis_password"

    assert re.fullmatch("[A-Za-z0-9]{40}", first)
    assert first == again == path.read_text().strip()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert first not in lab.hosts_file.read_text()


def test_paths_work_with_a_space_in_the_folder_name(tmp_path: Path) -> None:
    """Ansible resolves the paths of the key and of known_hosts relative to the file, also with a space in the folder's name."""
    lab = a_lab(tmp_path / "my lab")
    ensure_hosts_file(lab, ANY)
    output = look_up(lab, "{{ ansible_ssh_private_key_file }}|{{ ansible_ssh_common_args }}")

    assert f"{lab.key_file}|-o 'UserKnownHostsFile=" in output
    assert str(lab.known_hosts) in output
