#!/usr/bin/python
"""Verify Harbor's health, its robot accounts and that private projects allow no anonymous access. It reports verdicts.

The rights of a robot are read as a container client gets them: from the claims of a token for a repository.
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
    """Return the actions that a token, a JWT, allows in a repository."""
    middle = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    return {action for one in claims.get("access") or () if one.get("name") == repository for action in one.get("actions") or ()}


def unhealthy_components(harbor: Harbor) -> list[str]:
    """Return the unhealthy components with their error."""
    health = harbor.get("/health")
    if health.get("status") == "healthy":
        return []
    return [
        f"{one['name']}: {one.get('error') or one['status']}" for one in health.get("components") or () if one["status"] != "healthy"
    ] or [str(health)]


def open_projects(harbor: Harbor, private: list[str]) -> list[str]:
    """Return the private projects that allow anonymous pulls."""
    return [f"anybody may pull from {name}" for name in private if rights(harbor.token(f"{name}/verify", None), f"{name}/verify")]


def missing_rights(harbor: Harbor, robot: dict[str, Any], projects: list[str]) -> list[str]:
    """Return the rights that a robot should have and does not have."""
    account = (f"{robot['prefix']}{robot['name']}", robot["secret"])
    if not harbor.accepts(*account):
        return [f"{account[0]} cannot log in"]
    expected = {"pull", "push"} if robot["push"] else {"pull"}
    found = []
    for project in robot["projects"] or projects:
        missing = expected - rights(harbor.token(f"{project}/verify", account), f"{project}/verify")
        if missing:
            found.append(f"{account[0]} may not {', '.join(sorted(missing))} in {project}")
    return found


def verdict_of(host: str, check: str, expected: str, device: str, problems: Callable[[], list[str]]) -> dict[str, Any]:
    """Return one verdict; it is unknown if Harbor does not answer."""
    started, verdict, reason = time.time(), "pass", ""
    try:
        reason = "; ".join(problems())
        verdict = "fail" if reason else "pass"
    except (HarborError, ValueError, IndexError, KeyError) as error:
        verdict, reason = "unknown", f"Harbor did not answer: {error}"
    fix = {"pass": "", "unknown": "check that the controller can reach harbor_hostname, and set harbor_ca_file to its CA certificate"}.get(
        verdict, "primus-bootstrap apply hosts.yaml --phase registry"
    )
    return {
        "check": check, "host": host, "device": device, "serial": "", "verdict": verdict, "expected": expected, "found": reason or expected,
        "unit": "", "source": "docs/kubernetes-services.md", "reason": reason, "fix": fix, "started": started,
        "seconds": time.time() - started,
        "schema": "primus.verdict/1",
    }  # fmt: skip


def verdicts(params: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all verdicts."""
    harbor, host = Harbor(params["url"], None, params["ca_pem"]), params["host"]
    found = [verdict_of(host, "harbor.health", "every component is healthy", "", lambda: unhealthy_components(harbor))]
    if params["private"]:
        expected = "no anonymous pulls"
        found.append(verdict_of(host, "harbor.private", expected, "", lambda: open_projects(harbor, params["private"])))
    for robot in params["robots"]:
        account = {**robot, "prefix": params["robot_prefix"]}
        expected = "can pull and push" if robot["push"] else "can pull"
        found.append(
            verdict_of(
                host, "harbor.robot", expected, robot["name"], lambda account=account: missing_rights(harbor, account, params["projects"])
            )
        )
    return found


def main() -> None:
    """Run the checks and report the verdicts."""
    strings = {"type": "list", "elements": "str", "required": True}
    robot = {
        "name": {"required": True},
        "secret": {"required": True, "no_log": True},
        "projects": strings,
        "push": {"type": "bool", "required": True},
    }
    options: dict[str, Any] = {
        "host": {"required": True},
        "url": {"required": True},
        "ca_pem": {"default": ""},
        "projects": strings,
        "private": strings,
        "robots": {"type": "list", "elements": "dict", "required": True, "options": robot},
        "robot_prefix": {"default": "robot$"},
    }
    module = AnsibleModule(options, supports_check_mode=True)
    found = verdicts(module.params)
    failed = [f"{one['check']} {one['device']}: {one['reason']}. Fix: {one['fix']}" for one in found if one["verdict"] == "fail"]
    result = {"changed": False, "stdout": json.dumps({"verdicts": found})}
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
