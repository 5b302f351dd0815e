"""The verb `verify` with the real Ansible."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap import content
from primus_bootstrap.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


SITE = "---\n- name: verify\n  import_playbook: verify.yml\n"
PLAYBOOK = """---
- name: Verify every host
  hosts: all
  gather_facts: false
  tasks:
    - name: Verify records
      ansible.builtin.import_role: {name: records, tasks_from: verify}
    - name: Verify tasks
      ansible.builtin.import_role: {name: tasks, tasks_from: verify}
    - name: Verify the last
      ansible.builtin.import_role: {name: last, tasks_from: verify}
- name: Verify some hosts
  hosts: gpu_node
  gather_facts: false
  tasks:
    - name: Verify the GPUs
      ansible.builtin.import_role: {name: gpus, tasks_from: verify}
"""
RECORDS = """- name: Hand a record over
  ansible.builtin.debug:
    msg: '{"verdicts": [{"check": "echo", "verdict": "pass"}]}'
"""
TASKS = """- name: Refuse one host
  ansible.builtin.assert:
    that: inventory_hostname != 'n2'
    fail_msg: 'n2 is odd. Fix: use n1.'
"""
LAST = """- name: Answer
  ansible.builtin.ping:
"""


@pytest.fixture
def hosts_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an inventory with two hosts that both are this machine, and playbooks whose second role fails on n2; only n1 is a gpu_node."""
    playbooks = tmp_path / "playbooks"
    for name, text in {"records": RECORDS, "tasks": TASKS, "last": LAST, "gpus": LAST}.items():
        (playbooks / "roles" / name / "tasks").mkdir(parents=True)
        (playbooks / "roles" / name / "tasks" / "verify.yml").write_text(text, encoding="utf-8")
    (playbooks / "site.yml").write_text(SITE, encoding="utf-8")
    (playbooks / "verify.yml").write_text(PLAYBOOK, encoding="utf-8")
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    groups: dict[str, Any] = {"gpu_node": {"hosts": {"n1": {}}}, "container_host": {"hosts": {"n2": {}}}}
    inventory = {"all": {"vars": {"cluster_name": "proof", **local}, "hosts": {"n1": {}, "n2": {}}, "children": groups}}
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(inventory), encoding="utf-8")
    return tmp_path / "hosts.yaml"


def test_verify_prints_one_table(hosts_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has every service on every host, failures first. The exit code is 4."""
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(hosts_yaml)])
    shown = capsys.readouterr().out

    assert ended.value.code == 4
    assert [line.split()[:3] for line in shown.splitlines()[1:9]] == [
        ["tasks", "n2", "fail"], ["tasks", "n1", "pass"], ["last", "n2", "unknown"], ["last", "n1", "pass"],
        ["records", "n1", "pass"], ["records", "n2", "pass"], ["gpus", "n1", "pass"], [],
    ]  # fmt: skip
    assert "fail tasks on n2\n  n2 is odd.\n  fix: use n1." in shown
    assert "verify proof: 5 pass, 1 fail, 1 unknown" in shown


def test_verify_of_good_hosts_has_exit_code_0(hosts_yaml: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--limit selects the hosts, and --json prints each row with its verdicts."""
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(hosts_yaml), "--limit", "n1", "--json"])
    answer = json.loads(capsys.readouterr().out)

    assert ended.value.code == 0
    assert [(row["service"], row["host"], row["verdict"]) for row in answer["services"]] == [
        ("records", "n1", "pass"), ("tasks", "n1", "pass"), ("last", "n1", "pass"), ("gpus", "n1", "pass"),
    ]  # fmt: skip
    assert answer["services"][0]["records"][0]["check"] == "echo"
    assert answer["services"][1]["proven"] == "Refuse one host"
