"""Runs for single Slurm nodes with the shipped playbooks and a real Ansible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from primus_bootstrap import content

DEAD: dict[str, Any] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
HERE: dict[str, Any] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}


def run(folder: Path, controllers: dict[str, dict[str, Any]]) -> str:
    """Query the controllers as playbooks/slurm.yml does; return the controllers that n1 registers with and those it must trust."""
    groups = {"slurm_controller": {"hosts": controllers}, "slurm_node": {"hosts": {"n1": HERE}}}
    (folder / "hosts.yaml").write_text(yaml.safe_dump({"all": {"children": groups}}), encoding="utf-8")
    believed = yaml.safe_load((content.playbooks_dir() / "verify" / "slurm.yml").read_text(encoding="utf-8"))[0]["vars"]
    told = {
        "hosts": "slurm_node",
        "vars": believed,
        "gather_facts": False,
        "vars_files": [str(content.playbooks_dir() / "vars" / "slurm.yml"), str(content.roles_dir() / "slurm" / "vars" / "main.yml")],
        "tasks": [
            {
                "ansible.builtin.copy": {
                    "content": "{{ _slurm_available_controllers | sort | join(',') }}; {{ munge_reference_host }}",
                    "dest": str(folder / "told"),
                    "mode": "0644",
                }
            }
        ],
    }
    plays = [{"ansible.builtin.import_playbook": str(content.playbooks_dir() / "slurm" / "reach.yml")}, told]
    (folder / "play.yml").write_text(yaml.safe_dump(plays), encoding="utf-8")
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.yaml", "play.yml"]
    environment = {**os.environ, "ANSIBLE_ROLES_PATH": str(content.roles_dir()), "ANSIBLE_HOST_KEY_CHECKING": "False"}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)
    told_file = folder / "told"
    return told_file.read_text(encoding="utf-8") if told_file.exists() else f"nobody: {done.stdout}"


def test_node_registers_with_the_controller_that_answers(tmp_path: Path) -> None:
    """The dead controller fails by itself, and the node continues."""
    assert run(tmp_path, {"ctl1": DEAD, "ctl2": HERE}) == "ctl2; ctl2"


def test_node_registers_with_both_controllers(tmp_path: Path) -> None:
    """The backup also knows every node."""
    assert run(tmp_path, {"ctl1": HERE, "ctl2": HERE}) == "ctl1,ctl2; ctl1"


@pytest.mark.parametrize(
    ("arguments", "hosts"),
    [([], []), (["--limit", "n1"], ["n1"]), (["-e", "node=n2"], ["n2"]), (["--limit", "n1:ctl1"], ["n1"])],
)
def test_single_nodes_are_checked_only_with_a_limit(arguments: list[str], hosts: list[str], tmp_path: Path) -> None:
    """In a full run the controllers check every node."""
    groups = {"slurm_controller": {"hosts": {"ctl1": HERE}}, "slurm_node": {"hosts": {"n1": HERE, "n2": HERE}}}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump({"all": {"children": groups}}), encoding="utf-8")
    playbook = content.playbooks_dir() / "verify" / "slurm_node.yml"
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.yaml", str(playbook), "--list-hosts", *arguments]
    environment = {**os.environ, "ANSIBLE_ROLES_PATH": str(content.roles_dir())}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=120)

    assert [line.strip() for line in done.stdout.splitlines() if line.startswith("      ") and ":" not in line] == hosts
