"""Role `airgap`: addresses of the mirrors, resolved by Ansible."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.playbooks import run_playbook


def test_mirror_addresses_follow_the_inventory() -> None:
    """Each host of the group in order: `ip`, else `ansible_host`, else its name, with its own port."""
    play = [
        {
            "hosts": "a",
            "gather_facts": False,
            "connection": "local",
            "vars_files": ["playbooks/vars/airgap.yml"],
            "tasks": [{"ansible.builtin.debug": {"var": "airgap_mirrors"}}],
        }
    ]
    hosts = {"a": {"ip": "10.0.0.1", "ansible_host": "x"}, "b": {"ansible_host": "10.0.0.2", "airgap_port": 9000}, "c": None}
    inventory = {"all": {"vars": {"airgap_bundle": "b"}, "children": {"airgap_mirror": {"hosts": hosts}}}}

    assert debug_output(play, inventory) == ["http://10.0.0.1:8187", "http://10.0.0.2:9000", "http://c:8187"]
    inventory["all"]["vars"] = {}
    assert debug_output(play, inventory) == []


def debug_output(play: object, inventory: object) -> list[str]:
    """Run a play with one debug task; return its output."""
    root = Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as folder:
        hosts, book = Path(folder) / "hosts.yaml", Path(folder) / "book.yml"
        hosts.write_text(json.dumps(inventory))
        text = json.dumps(play).replace("playbooks/vars", str(root / "playbooks" / "vars"))
        book.write_text(text)
        done = run_playbook(hosts, book, environment={"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"})
        assert done.returncode == 0, done.stdout + done.stderr
    found: list[str] = json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"]["a"]["airgap_mirrors"]
    return found
