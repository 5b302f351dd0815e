"""The release of a quarantine with the real Ansible."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from pathlib import Path


def test_a_host_that_cannot_be_checked_is_not_released(tmp_path: Path) -> None:
    """The host cannot run the check. The playbook fails without a change on the controllers."""
    local = "ansible_connection: local, ansible_become: false, ansible_python_interpreter"
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(
        f"all:\n  hosts:\n    ctl: {{{local}: {sys.executable}}}\n    gpu1: {{{local}: /nowhere/python3}}\n"
        "  children:\n    slurm_controller: {hosts: {ctl: }}\n    gpu_node: {hosts: {gpu1: }}\n"
    )

    done = run_playbook(hosts, "day2/release_node.yml", "-e", "node=gpu1", environment={"USER": "ada"})

    assert done.returncode != 0
    assert "gpu1 does not answer (" in done.stdout
    assert "PLAY [Resume the host in Slurm]" not in done.stdout
