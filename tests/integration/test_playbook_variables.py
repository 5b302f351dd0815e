"""Values of hosts.yaml win over those that the playbooks compute."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.playbooks import run_playbook, write_yaml

if TYPE_CHECKING:
    from pathlib import Path

COMPUTED = {"users_groups_login": False, "container_runtime_accounts": ["ada"]}
STATED = {"users_groups_login": True, "container_runtime_accounts": []}


@pytest.mark.parametrize(("stated", "values"), [({}, COMPUTED), (STATED, STATED)], ids=["computed", "stated"])
def test_values_of_hosts_yaml_win(tmp_path: Path, stated: dict[str, Any], values: dict[str, Any]) -> None:
    """The host is in none of the groups for people, while the cluster has one of these groups."""
    accounts = {"users_groups_accounts": [{"name": "ada"}, {"name": "bob", "state": "absent"}]}
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **accounts, **stated}
    hosts = {"all": {"hosts": {"one": local}, "children": {"gpu_node": {"hosts": {"two": {}}}}}}
    write_yaml(tmp_path / "hosts.yaml", hosts)
    shown = ", ".join(f"'{name}': {name}" for name in values)
    write = {"content": f"{{{{ {{{shown}}} | to_json }}}}", "dest": str(tmp_path / "out.json")}
    play = {
        "name": "Show the values",
        "hosts": "one",
        "gather_facts": False,
        "vars_files": [str(content.playbooks_dir() / "vars" / f"{role}.yml") for role in ("users_groups", "container_runtime")],
        "tasks": [{"name": "Write the values", "ansible.builtin.copy": write}],
    }
    write_yaml(tmp_path / "play.yml", [play])

    done = run_playbook(tmp_path / "hosts.yaml", tmp_path / "play.yml")

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "out.json").read_text("utf-8")) == values
