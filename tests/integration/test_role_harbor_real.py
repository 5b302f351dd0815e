"""Role `harbor`: verdicts of the verification."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import bcrypt
import yaml

from primus_bootstrap import content
from tests.integration.harbor_rig import HarborOnLoopback, serving
from tests.playbooks import run_playbook, write_yaml
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

EFFECTS = load_role_module("harbor", "harbor_effects")


def jwt(**actions: list[str]) -> str:
    """Return a token as Harbor's service creates it, without a signature."""
    claims = {"access": [{"type": "repository", "name": f"{name}/verify", "actions": words} for name, words in actions.items()]}
    return f"e.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.s"


def verdicts_on(harbor: HarborOnLoopback, **more: Any) -> dict[str, tuple[str, str]]:
    """Return each check with its verdict and reason."""
    robot = {"name": "nodes", "secret": "Secret-of-nodes-1", "projects": ["train"], "push": False}
    params = {"host": "cp1", "url": harbor.url, "ca_pem": "", "projects": ["train"], "private": ["train"], "robots": [robot],
              "robot_prefix": "robot$", **more}  # fmt: skip
    return {one["check"]: (one["verdict"], one.get("reason", "")) for one in EFFECTS.check_harbor(params).records}


def test_healthy_harbor_passes() -> None:
    """Healthy, no anonymous access, access for the robot."""
    harbor = HarborOnLoopback()
    harbor.accounts["robot$nodes"] = "Secret-of-nodes-1"
    harbor.tokens = {"": jwt(train=[]), "robot$nodes": jwt(train=["pull"])}
    with serving(harbor):
        found = verdicts_on(harbor)

    assert {word for word, _ in found.values()} == {"pass"}
    assert len(found) == 3


def test_each_problem_fails() -> None:
    """An unhealthy component, a public project, and a robot without pull right or login."""
    harbor = HarborOnLoopback()
    harbor.healthy = False
    harbor.accounts["robot$nodes"] = "Secret-of-nodes-1"
    harbor.tokens = {"": jwt(train=["pull"]), "robot$nodes": jwt(other=["pull"])}
    with serving(harbor):
        found = verdicts_on(harbor)
        harbor.accounts["robot$nodes"] = "Another-secret-1"
        locked = verdicts_on(harbor)

    assert found["harbor.health"] == ("fail", "core: no answer")
    assert found["harbor.private"] == ("fail", "anybody may pull from train")
    assert found["harbor.robot"] == ("fail", "robot$nodes may not pull in train")
    assert locked["harbor.robot"] == ("fail", "robot$nodes cannot log in")


def test_no_answer_is_unknown() -> None:
    """No check passes or fails."""
    harbor = HarborOnLoopback()
    harbor.url = "http://127.0.0.1:1"

    assert {word for word, _ in verdicts_on(harbor).values()} == {"unknown"}


def test_secrets_are_generated_as_harbor_needs_them(tmp_path: Path) -> None:
    """The encryption key has exactly 16 characters, all differ, and the registry's hash is that of core's password."""
    role = content.roles_dir() / "harbor"
    generate = next(
        task for task in yaml.safe_load((role / "tasks/secrets.yml").read_text(encoding="utf-8")) if "ansible.builtin.set_fact" in task
    )
    values = {"harbor_namespace": "harbor", "harbor_hostname": "harbor.example.com", "_harbor_labels": {}}
    tasks = [
        {"ansible.builtin.include_vars": str(role / "vars/objects.yml")},
        {"ansible.builtin.set_fact": generate["ansible.builtin.set_fact"]},
        {"ansible.builtin.copy": {"content": "{{ _harbor_generated_secrets | to_json }}", "dest": str(tmp_path / "out"), "mode": "0600"}},
    ]
    write_yaml(tmp_path / "play.yml", [{"hosts": "localhost", "gather_facts": False, "vars": values, "tasks": tasks}])
    filters = f"{content.plugins_dir() / 'filter'}:{role / 'filter_plugins'}"
    done = run_playbook("localhost,", tmp_path / "play.yml", "-c", "local", environment={"ANSIBLE_FILTER_PLUGINS": filters})

    assert done.returncode == 0, done.stdout
    secrets = {one["metadata"]["name"]: one["stringData"] for one in json.loads((tmp_path / "out").read_text(encoding="utf-8"))}
    key, inside, account = (secrets[f"harbor-{name}"] for name in ("key", "inside", "registry-account"))
    assert len(key["secretKey"]) == 16
    assert len({*key.values(), *inside.values(), account["REGISTRY_PASSWD"]}) == 6
    assert bcrypt.checkpw(account["REGISTRY_PASSWD"].encode(), account["REGISTRY_HTPASSWD"].partition(":")[2].encode())
    assert "BEGIN RSA PRIVATE KEY" in secrets["harbor-token"]["tls.key"]
