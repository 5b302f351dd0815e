"""Drain and resume of a Slurm node with plain ansible-playbook and a dead controller."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.playbooks import run_playbook

if TYPE_CHECKING:
    from pathlib import Path

# Each call is recorded with the controller's name, which its interpreter passes on.
MODULE = """
import json, os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={"node": {}, "state": {}, "reason": {}, "wait_s": {}, "force": {}})
with open(%r, "a") as log:
    log.write(f"{os.environ['ASKED']} {module.params['state']} {module.params['node']}\\n")
module.exit_json(changed=True)
"""
LOCAL: dict[str, Any] = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
# Port 1 of this machine refuses connections, so SSH fails at once.
DEAD: dict[str, Any] = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


def play(tmp_path: Path, controllers: dict[str, dict[str, Any]], *, wanted: bool = True) -> tuple[int, list[str], str]:
    """Drain and resume n1; return the exit code, the calls by controller, and the output."""
    role, log = tmp_path / "roles/slurm", tmp_path / "log"
    (role / "library").mkdir(parents=True)
    (role / "library/slurm_node_state.py").write_text(MODULE % str(log), encoding="utf-8")
    for part in ("tasks", "vars", "defaults", "meta"):
        (role / part).symlink_to(content.roles_dir() / "slurm" / part)
    steps = [{"ansible.builtin.import_role": {"name": "slurm", "tasks_from": step}} for step in ("node_drain", "node_resume")]
    variables = {"slurm_drain_enabled": wanted, "slurm_drain_controllers": list(controllers)}
    asked_of = {"ASKED": "{{ _slurm_drain_controller | default('') }}"}
    plays = [{"hosts": "n1", "gather_facts": False, "vars": variables, "environment": asked_of, "tasks": steps}]
    (tmp_path / "play.yml").write_text(json.dumps(plays), encoding="utf-8")
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"n1": LOCAL, **controllers}}}), encoding="utf-8")
    environment = {
        "ANSIBLE_ROLES_PATH": str(tmp_path / "roles"), "ANSIBLE_SSH_RETRIES": "0",
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"), "ANSIBLE_HOME": str(tmp_path / "home"),
    }  # fmt: skip
    done = run_playbook(tmp_path / "hosts.json", tmp_path / "play.yml", environment=environment)
    return done.returncode, log.read_text(encoding="utf-8").splitlines() if log.exists() else [], done.stdout + done.stderr


@pytest.mark.parametrize("controllers", [{"ctl1": DEAD, "ctl2": LOCAL}, {"ctl2": LOCAL, "ctl1": DEAD}], ids=["the first", "the second"])
def test_other_controller_is_used_if_one_is_dead(tmp_path: Path, controllers: dict[str, dict[str, Any]]) -> None:
    """Either of the two may be dead."""
    code, asked, said = play(tmp_path, controllers)

    assert code == 0, said
    assert asked == ["ctl2 drained n1", "ctl2 resumed n1"]


def test_without_a_controller_the_drain_is_refused(tmp_path: Path) -> None:
    """The jobs of the node are unknown. The error names the controllers."""
    code, asked, said = play(tmp_path, {"ctl1": DEAD})

    assert code != 0
    assert asked == []
    assert "Fix: start slurmctld on ctl1" in " ".join(said.split())


def test_without_slurm_no_controller_is_needed(tmp_path: Path) -> None:
    """A cluster without Slurm is rebooted as well."""
    code, asked, said = play(tmp_path, {})

    assert (code, asked) == (0, []), said
