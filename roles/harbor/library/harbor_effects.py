#!/usr/bin/python
"""Whether Harbor is healthy, lets robots in and keeps strangers out: the Ansible module `harbor_effects`, which prints verdicts.

What a robot may is asked as a client of images asks: for a token of a repository, whose claims name the rights.
"""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.harbor_api import Harbor, HarborError

if TYPE_CHECKING:
    from collections.abc import Callable


def rights(token: str, repository: str) -> set[str]:
    """Return what a token lets its bearer do in a repository; it is a JWT, whose middle part says so."""
    middle = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    return {action for one in claims.get("access") or () if one.get("name") == repository for action in one.get("actions") or ()}


def healthy(harbor: Harbor) -> list[str]:
    """Return the parts that are not."""
    health = harbor.get("/health")
    if health.get("status") == "healthy":
        return []
    return [
        f"{one['name']}: {one.get('error') or one['status']}" for one in health.get("components") or () if one["status"] != "healthy"
    ] or [str(health)]


def kept_out(harbor: Harbor, private: list[str]) -> list[str]:
    """Return the private projects from which anybody may pull."""
    return [f"anybody may pull from {name}" for name in private if rights(harbor.token(f"{name}/verify", None), f"{name}/verify")]


def let_in(harbor: Harbor, robot: dict[str, Any], projects: list[str]) -> list[str]:
    """Return what a robot should be able to do and is not."""
    account = (f"{robot['prefix']}{robot['name']}", robot["secret"])
    if not harbor.knows(*account):
        return [f"{account[0]} cannot log in"]
    wanted = {"pull", "push"} if robot["push"] else {"pull"}
    found = []
    for project in robot["projects"] or projects:
        missing = wanted - rights(harbor.token(f"{project}/verify", account), f"{project}/verify")
        if missing:
            found.append(f"{account[0]} may not {', '.join(sorted(missing))} in {project}")
    return found


def judge(host: str, check: str, expected: str, about: str, look: Callable[[], list[str]]) -> dict[str, Any]:
    """Return one verdict: unknown where Harbor does not answer."""
    began, verdict, reason = time.time(), "pass", ""
    try:
        reason = "; ".join(look())
        verdict = "fail" if reason else "pass"
    except (HarborError, ValueError, IndexError, KeyError) as error:
        verdict, reason = "unknown", f"Harbor did not tell: {error}"
    fix = {"pass": "", "unknown": "ask from a machine that reaches Harbor; harbor_ca_file names its authority"}.get(
        verdict, "apply the phase registry again"
    )
    return {
        "check": check, "host": host, "device": about, "serial": "", "verdict": verdict, "expected": expected, "found": reason or expected,
        "unit": "", "source": "docs/kubernetes-services.md", "reason": reason, "fix": fix, "started": began, "seconds": time.time() - began,
        "schema": "primus.verdict/1",
    }  # fmt: skip


def verdicts(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all of them."""
    harbor, host = Harbor(params["url"], None, params["ca_pem"]), params["host"]
    found = [judge(host, "harbor.health", "every part is healthy", "", lambda: healthy(harbor))]
    if params["private"]:
        found.append(judge(host, "harbor.private", "nobody pulls without an account", "", lambda: kept_out(harbor, params["private"])))
    for robot in params["robots"]:
        named = {**robot, "prefix": params["robot_prefix"]}
        may = "pulls and pushes" if robot["push"] else "pulls"
        found.append(judge(host, "harbor.robot", f"it {may}", robot["name"], lambda named=named: let_in(harbor, named, params["projects"])))
    return found


def main() -> None:
    """Judge Harbor."""
    words = {"type": "list", "elements": "str", "required": True}
    robot = {
        "name": {"required": True},
        "secret": {"required": True, "no_log": True},
        "projects": words,
        "push": {"type": "bool", "required": True},
    }
    options: dict[str, Any] = {
        "host": {"required": True},
        "url": {"required": True},
        "ca_pem": {"default": ""},
        "projects": words,
        "private": words,
        "robots": {"type": "list", "elements": "dict", "required": True, "options": robot},
        "robot_prefix": {"default": "robot$"},
    }
    module = AnsibleModule(options, supports_check_mode=True)
    found = verdicts(module.params)
    bad = [f"{one['check']} {one['device']}: {one['reason']}" for one in found if one["verdict"] == "fail"]
    answer = {"changed": False, "stdout": json.dumps({"verdicts": found})}
    if bad:
        module.fail_json(msg="; ".join(bad), **answer)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
