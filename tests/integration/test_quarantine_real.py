"""The release of a quarantine with the real Ansible."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from primus_bootstrap import content
from tests.unit.test_quarantine import SPEC, rules

assert SPEC
assert SPEC.loader
SPEC.loader.exec_module(rules)


def test_a_host_that_cannot_be_checked_is_not_released(tmp_path: Path) -> None:
    """The host cannot run the check. The playbook fails without a change on the controllers."""
    local = "ansible_connection: local, ansible_become: false, ansible_python_interpreter"
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(
        f"all:\n  hosts:\n    ctl: {{{local}: {sys.executable}}}\n    gpu1: {{{local}: /nowhere/python3}}\n"
        "  children:\n    slurm_controller: {hosts: {ctl: }}\n    gpu_node: {hosts: {gpu1: }}\n"
    )
    playbook = content.playbooks_dir() / "day2/release_node.yml"
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(hosts), str(playbook), "-e", "node=gpu1"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg()), "ANSIBLE_NOCOLOR": "1", "USER": "ada"}

    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode != 0
    assert "gpu1 does not answer (" in done.stdout
    assert "PLAY [Let jobs start there again]" not in done.stdout
