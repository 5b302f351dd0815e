"""What the role `harbor` decides: what contradicts itself, the defaults of entries, and what its verification makes of answers."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.integration.harbor_rig import HarborOnLoopback, serving
from tests.unit.role_module import load_role_module

EFFECTS = load_role_module("harbor", "harbor_effects")


def jwt(**actions: list[str]) -> str:
    """Return a token as Harbor's service makes it, without a signature."""
    claims = {"access": [{"type": "repository", "name": f"{name}/verify", "actions": words} for name, words in actions.items()]}
    return f"e.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.s"


def judged(harbor: HarborOnLoopback, **more: Any) -> dict[str, tuple[str, str]]:
    """Return each check with its verdict and reason."""
    robot = {"name": "nodes", "secret": "Secret-of-nodes-1", "projects": ["train"], "push": False}
    params = {"host": "cp1", "url": harbor.url, "ca_pem": "", "projects": ["train"], "private": ["train"], "robots": [robot],
              "robot_prefix": "robot$", **more}  # fmt: skip
    return {one["check"]: (one["verdict"], one["reason"]) for one in EFFECTS.verdicts(params)}


def test_a_harbor_that_does_what_it_should_passes() -> None:
    """Healthy, closed to strangers, open to the robot."""
    harbor = HarborOnLoopback()
    harbor.accounts["robot$nodes"] = "Secret-of-nodes-1"
    harbor.tokens = {"": jwt(train=[]), "robot$nodes": jwt(train=["pull"])}
    with serving(harbor):
        found = judged(harbor)

    assert {word for word, _ in found.values()} == {"pass"}
    assert len(found) == 3


def test_what_is_wrong_is_named() -> None:
    """An ill part, a private project that anybody may pull from, a robot that may not pull, and one that cannot log in."""
    harbor = HarborOnLoopback()
    harbor.healthy = False
    harbor.accounts["robot$nodes"] = "Secret-of-nodes-1"
    harbor.tokens = {"": jwt(train=["pull"]), "robot$nodes": jwt(other=["pull"])}
    with serving(harbor):
        found = judged(harbor)
        harbor.accounts["robot$nodes"] = "Another-secret-1"
        locked = judged(harbor)

    assert found["harbor.health"] == ("fail", "core: no answer")
    assert found["harbor.private"] == ("fail", "anybody may pull from train")
    assert found["harbor.robot"] == ("fail", "robot$nodes may not pull in train")
    assert locked["harbor.robot"] == ("fail", "robot$nodes cannot log in")


def test_no_answer_is_unknown() -> None:
    """Where Harbor cannot be asked, nothing is good or bad."""
    harbor = HarborOnLoopback()
    harbor.url = "http://127.0.0.1:1"

    assert {word for word, _ in judged(harbor).values()} == {"unknown"}
