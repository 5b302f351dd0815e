"""Runs for single Slurm nodes with the shipped playbooks and a real Ansible."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from pathlib import Path

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
    done = run_playbook(folder / "hosts.yaml", folder / "play.yml", environment={"ANSIBLE_HOST_KEY_CHECKING": "False"})
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
    done = run_playbook(tmp_path / "hosts.yaml", "verify/slurm_node.yml", "--list-hosts", *arguments)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.strip() for line in done.stdout.splitlines() if line.startswith("      ") and ":" not in line] == hosts
