"""The lab's hosts.yaml: what it says, and that a person's file is never overwritten."""

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
    """Return what Ansible makes of an expression on the lab's first host, without contacting it."""
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


def test_no_secret_stands_in_the_file_and_each_is_made_once(tmp_path: Path) -> None:
    """Reading a secret makes a file that only its owner can read, in a folder that only its owner can enter, and then keeps it."""
    lab = a_lab(tmp_path / "my lab")
    ensure_hosts_file(lab, ANY)
    first, again = (look_up(lab, "{{ redis_password }}") for _ in range(2))
    path = lab.own_state / "secrets/redis_password"

    assert re.fullmatch("[A-Za-z0-9]{40}", first)
    assert first == again == path.read_text().strip()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert first not in lab.hosts_file.read_text()


def test_ansible_reads_it_and_names_key_and_pins_with_any_folder_name(tmp_path: Path) -> None:
    """Ansible's own reading gives paths beside the file, also where the folder's name has a space."""
    lab = a_lab(tmp_path / "my lab")
    ensure_hosts_file(lab, ANY)
    said = look_up(lab, "{{ ansible_ssh_private_key_file }}|{{ ansible_ssh_common_args }}")

    assert f"{lab.key_file}|-o 'UserKnownHostsFile=" in said
    assert str(lab.known_hosts) in said
