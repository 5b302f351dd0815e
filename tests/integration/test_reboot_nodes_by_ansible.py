"""`playbooks/day2/reboot_node.yml` with plain ansible-playbook and fake roles."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content
from tests.playbooks import run_playbook, write_yaml

if TYPE_CHECKING:
    from pathlib import Path

PLAYBOOK = content.playbooks_dir() / "day2" / "reboot_node.yml"
GROUPS = {"slurm_node": ("g1", "g2", "c1"), "gpu_node": ("g1", "k1"), "k8s_cluster": ("k1",), "slurm_controller": ("ctl1", "ctl2")}
HOSTS = ("g1", "g2", "c1", "k1", "ctl1", "ctl2")
# c1 needs no reboot. Other variables of the roles are covered by their own tests.
WAITS = "inventory_hostname in ['g1', 'g2', 'k1', 'ctl1']"
ONLY = {
    "baseline/reboot": WAITS,
    "slurm/node_drain": "slurm_drain_enabled and slurm_drain_reason == 'primus: reboot'",
    "slurm/node_resume": "slurm_drain_enabled and slurm_resume_reason == 'primus: reboot'",
    "node_health/wait": "node_health_wait_enabled",
}
LONG = pytest.mark.long("roles/baseline", "roles/node_health", "playbooks/day2")


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    """Fake roles that record each step of a host; an unhealthy host stays unhealthy."""
    folder = tmp_path / "roles"
    for task in yaml.safe_load(PLAYBOOK.read_text(encoding="utf-8"))[0]["tasks"]:
        role = task["ansible.builtin.import_role"]
        step = f"{role['name']}/{role.get('tasks_from', 'main')}"
        ill = {"ansible.builtin.assert": {"that": f"'{step}' != 'node_health/wait' or inventory_hostname not in ill | default([])"}}
        note = {"ansible.builtin.shell": f"echo {step} {{{{ inventory_hostname }}}} >> {tmp_path}/log", "when": ONLY.get(step, "true")}
        write_yaml(folder / role["name"] / "tasks" / f"{role.get('tasks_from', 'main')}.yml", [ill, note])
    variables = {
        "_baseline_reboot_open": f"{{{{ {WAITS} }}}}",
        "_baseline_has_slurmd": "{{ inventory_hostname not in bare | default([]) }}",
    }
    write_yaml(folder / "baseline/vars/main.yml", variables)
    return folder


def run(roles: Path, *words: str) -> tuple[int, dict[str, list[str]]]:
    """Run the playbook with all hosts on this machine; return its exit code and the steps of each host."""
    log, inventory = roles.parent / "log", roles.parent / "hosts.yaml"
    hosts = {name: {"ansible_connection": "local", "ansible_python_interpreter": sys.executable} for name in HOSTS}
    children = {name: {"hosts": dict.fromkeys(members)} for name, members in GROUPS.items()}
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "children": children}}), encoding="utf-8")
    environment = {
        "ANSIBLE_ROLES_PATH": str(roles), "ANSIBLE_BECOME_METHOD": "none",
        "ANSIBLE_LOCAL_TEMP": str(roles.parent / "tmp"), "ANSIBLE_HOME": str(roles.parent / "home"),
    }  # fmt: skip
    done = run_playbook(inventory, PLAYBOOK, "-e", "ansible_become=false", *words, environment=environment)
    assert log.exists(), done.stdout + done.stderr
    steps = [line.split() for line in log.read_text(encoding="utf-8").splitlines()]
    return done.returncode, {name: [step for step, host in steps if host == name] for name in HOSTS}


@LONG
def test_slurm_node_is_drained_rebooted_and_resumed_when_healthy(roles: Path) -> None:
    """Running jobs end first, and no job starts before the health check passes. Other hosts have no jobs."""
    code, steps = run(roles)
    slurm = [step for step in steps["g1"] if step in ONLY]

    assert code == 0
    assert slurm == ["slurm/node_drain", "baseline/reboot", "node_health/wait", "slurm/node_resume"]
    assert {name: [step for step in steps[name] if step in ONLY] for name in ("c1", "k1", "ctl1")} == {
        "c1": [], "k1": ["baseline/reboot"], "ctl1": ["baseline/reboot"],
    }  # fmt: skip


def test_host_on_which_slurm_is_not_installed_yet_is_not_drained(roles: Path) -> None:
    """Kernel arguments need a reboot before the phase slurm has run. No controller could answer then."""
    code, steps = run(roles, "-e", '{"bare": ["g1"]}')

    assert code == 0
    assert [step for step in steps["g1"] if step in ONLY] == ["baseline/reboot"]
    assert "slurm/node_drain" in steps["g2"]


def test_unhealthy_host_stops_the_reboots(roles: Path) -> None:
    """It stays drained, and later hosts are not rebooted."""
    code, steps = run(roles, "-e", '{"ill": ["g1"]}')

    assert code != 0
    assert "baseline/reboot" in steps["g1"]
    assert "slurm/node_resume" not in steps["g1"]
    assert steps["g2"] == steps["k1"] == []
