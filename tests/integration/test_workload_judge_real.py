"""The role `workload`: plain Ansible refuses the same jobs as `workload submit`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from primus_bootstrap import content
from tests.unit.test_workload_judge import ROLE, a_job


def test_plain_ansible_refuses_an_invalid_job(tmp_path: Path) -> None:
    """`ansible-playbook playbooks/workload.yml` stops with the same lines, before it changes anything."""
    hosts = {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2"}}
    groups = {"primus_watch": {"hosts": {"n1": None}}, "workload_node": {"hosts": {"n2": None}}}
    inventory = {"all": {"vars": {"ansible_connection": "local", "ansible_become": False}, "hosts": hosts, "children": groups}}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(inventory))
    job = a_job(presets=["debug-dens"], nodes=3)
    (tmp_path / "job.yml").write_text(yaml.safe_dump(job))
    playbook = content.playbooks_dir() / "workload.yml"
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.yaml", str(playbook), "-e", "@job.yml"]
    environment = {"ANSIBLE_CONFIG": str(content.ansible_cfg()), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120)
    expected = ROLE.refusals(job, {"primus_watch": ["n1"], "workload_node": ["n2"]}, hosts)

    assert done.returncode == 2, done.stdout + done.stderr
    assert len(expected) == 2
    assert [line in done.stderr + done.stdout for line in expected] == [True, True], done.stdout + done.stderr
