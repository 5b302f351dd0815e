"""The role `workload`: plain Ansible refuses the same jobs as `workload submit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.inventory import job_rules
from tests.playbooks import run_playbook
from tests.unit.test_workload_judge import a_job

if TYPE_CHECKING:
    from pathlib import Path


def test_plain_ansible_refuses_an_invalid_job(tmp_path: Path) -> None:
    """`ansible-playbook playbooks/workload.yml` stops with the same lines, before it changes anything."""
    hosts = {"n1": {"ansible_host": "10.0.0.1"}, "n2": {"ansible_host": "10.0.0.2"}}
    groups = {"primus_watch": {"hosts": {"n1": None}}, "workload_node": {"hosts": {"n2": None}}}
    inventory = {"all": {"vars": {"ansible_connection": "local", "ansible_become": False}, "hosts": hosts, "children": groups}}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(inventory))
    job = a_job(presets=["debug-dens"], nodes=3)
    (tmp_path / "job.yml").write_text(yaml.safe_dump(job))
    done = run_playbook(
        tmp_path / "hosts.yaml", "workload.yml", "-e", f"@{tmp_path}/job.yml", environment={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    )
    expected = job_rules.problems(job, {"primus_watch": ["n1"], "workload_node": ["n2"]}, hosts)

    assert done.returncode == 2, done.stdout + done.stderr
    assert len(expected) == 2
    assert [line in done.stderr + done.stdout for line in expected] == [True, True], done.stdout + done.stderr
