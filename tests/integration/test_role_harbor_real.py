"""Role `harbor`: verdicts of the verification."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.integration.harbor_rig import HarborOnLoopback, serving
from tests.unit.role_module import load_role_module

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
    return {one["check"]: (one["verdict"], one["reason"]) for one in EFFECTS.verdicts(params)}


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
