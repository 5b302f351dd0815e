"""`playbooks/verify/monitoring.yml`: Prometheus' checks learn which hosts the run has reached."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap import content
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from pathlib import Path

HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
LOST = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_ssh_common_args": "-F /dev/null"}  # port 1 is closed


def test_monitoring_hosts_learn_which_hosts_answer(tmp_path: Path) -> None:
    """A host that was lost earlier in the run is missing. Only the monitoring hosts get the list."""
    plays = yaml.safe_load((content.playbooks_dir() / "verify/monitoring.yml").read_text(encoding="utf-8"))
    record = next(task for task in plays[0]["tasks"] if "set_fact" in "".join(task))
    told = {
        "content": "{{ prometheus_answering_hosts | to_json }}",
        "dest": f"{tmp_path}/{{{{ inventory_hostname }}}}.json",
        "mode": "0600",
    }
    passed = [str(content.playbooks_dir() / "vars/prometheus.yml")]
    play = [
        {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.ping": None}]},
        {"hosts": plays[0]["hosts"], "gather_facts": False, "tasks": [record]},
        {"hosts": "n1:p1", "gather_facts": False, "vars_files": passed, "tasks": [{"ansible.builtin.copy": told}]},
    ]
    inventory = {"all": {"hosts": {"n1": HERE, "n2": LOST, "p1": HERE}, "children": {"prometheus": {"hosts": {"p1": None}}}}}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play), encoding="utf-8")
    done = run_playbook(tmp_path / "hosts.yaml", tmp_path / "play.yml", environment={"ANSIBLE_HOME": str(tmp_path / "home")})

    assert done.returncode == 4, done.stdout + done.stderr
    assert "n2 " in done.stdout
    assert json.loads((tmp_path / "p1.json").read_text(encoding="utf-8")) == ["n1", "p1"]
    assert json.loads((tmp_path / "n1.json").read_text(encoding="utf-8")) == []
