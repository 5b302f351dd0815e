#!/usr/bin/python
"""Verify Harbor's health, its robot accounts and that private projects allow no anonymous access: the Ansible module `harbor_effects`.

Own module: the rights of a robot are read as a container client gets them, from the claims of a token for each repository, and no answer
is `unknown`. It changes nothing.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.harbor_api import Harbor, HarborError
from ansible.module_utils.verdict_records import Verdicts

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


def check(verdicts: Verdicts, name: str, expected: str, problems: Callable[[], list[str]], device: str = "") -> None:
    """Add one verdict; it is unknown if Harbor does not answer."""
    try:
        reason = "; ".join(problems())
    except (HarborError, ValueError, IndexError, KeyError) as error:
        reason = f"Harbor did not answer: {error}"
        fix = "check that the controller can reach harbor_hostname, and set harbor_ca_file to its CA certificate"
        verdicts.add(name, "unknown", expected=expected, found=reason, reason=reason, fix=fix, device=device)
        return
    fix = "primus-bootstrap apply hosts.yaml --phase registry"
    verdicts.add(name, "fail" if reason else "pass", expected=expected, found=reason or expected, reason=reason, fix=fix, device=device)


def check_harbor(params: dict[str, Any]) -> Verdicts:
    """Return all verdicts."""
    harbor, verdicts = Harbor(params["url"], None, params["ca_pem"]), Verdicts("harbor", params["host"])
    check(verdicts, "health", "every component is healthy", lambda: unhealthy_components(harbor))
    if params["private"]:
        check(verdicts, "private", "no anonymous pulls", lambda: open_projects(harbor, params["private"]))
    for robot in params["robots"]:
        account = {**robot, "prefix": params["robot_prefix"]}
        expected = "can pull and push" if robot["push"] else "can pull"
        check(verdicts, "robot", expected, lambda account=account: missing_rights(harbor, account, params["projects"]), robot["name"])
    return verdicts


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
    check_harbor(module.params).finish(module)


if __name__ == "__main__":
    main()
