"""What a node tells the controllers where one of them is dead, with the real Ansible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from primus_bootstrap import content
from tests.unit.engine_rig import LOCAL, free_port

LOCALLY = f"{{ansible_connection: local, ansible_python_interpreter: {LOCAL['ansible_python_interpreter']}}}"
DEAD = f"{{ansible_host: 127.0.0.1, ansible_port: {free_port()}}}"
TELL = """---
- name: Tell
  hosts: gpu1
  gather_facts: false
  tasks:
    - name: Tell the controllers
      ansible.builtin.include_role: {name: slurm, tasks_from: tell, rolespec_validate: false}
      vars:
        slurm_controllers: [{name: ctl1}, {name: ctl2}]
        _slurm_fragments_dir: FOLDER
        _slurm_fragment: "{}"
    - name: Go on
      ansible.builtin.debug: {msg: it serves}
"""


def tell(folder: Path, first: str, second: str) -> subprocess.CompletedProcess[str]:
    """Let gpu1 tell two controllers with these connections."""
    (folder / "hosts.yaml").write_text(f"all:\n  hosts:\n    ctl1: {first}\n    ctl2: {second}\n    gpu1: {LOCALLY}\n")
    (folder / "tell.yml").write_text(TELL.replace("FOLDER", str(folder)))
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(folder / "hosts.yaml"), str(folder / "tell.yml")]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg())}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_dead_backup_controller_takes_no_node_along(tmp_path: Path) -> None:
    """The other one is told, and the node goes on."""
    done = tell(tmp_path, LOCALLY, DEAD)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "gpu1.json").read_text() == "{}"
    assert "it serves" in done.stdout


def test_a_node_that_nobody_was_told_of_does_not_go_on(tmp_path: Path) -> None:
    """No controller answers: the node fails with what to do."""
    done = tell(tmp_path, DEAD, DEAD)

    assert done.returncode != 0
    assert "No controller of Slurm's answers (ctl1, ctl2), so gpu1 cannot serve." in " ".join(done.stdout.split())
    assert "it serves" not in done.stdout
