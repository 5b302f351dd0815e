#!/usr/bin/python
"""Make Harbor hold what is stated of projects, robot accounts, retention, collection and scans: the Ansible module `harbor_settings`.

It asks, changes what differs, and asks again until nothing differs any more: what Harbor takes and does not keep is found out and named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.harbor_api import Harbor, HarborError
from ansible.module_utils.harbor_plan import Change, State, plan

if TYPE_CHECKING:
    from collections.abc import Mapping

# A project, what needs its number, a robot's secret; then one round that finds nothing to do.
ROUNDS = 4


def read(harbor: Harbor, stated: Mapping[str, Any]) -> State:
    """Ask for everything that the statement is about."""
    state = State(gc=harbor.get("/system/gc/schedule"))
    if stated["scan_cron"]:
        state.scan = harbor.get("/system/scanAll/schedule")
    names = {project["name"] for project in stated["projects"]}
    for project in harbor.every("/projects", with_detail="false") if names else ():
        if project["name"] in names:
            _read_project(harbor, state, project)
    if stated["robots"]:
        prefix = (harbor.get("/configurations") or {}).get("robot_name_prefix") or {}
        state.robot_prefix = prefix.get("value") or state.robot_prefix
        state.robots = {robot["name"]: robot for robot in harbor.every("/robots")}
    for robot in stated["robots"]:
        name = state.robot_prefix + robot["name"]
        if name in state.robots:
            state.logins[name] = harbor.knows(name, robot["secret"])
    return state


def _read_project(harbor: Harbor, state: State, project: Mapping[str, Any]) -> None:
    name, number = project["name"], project["project_id"]
    # The list may leave settings out; one project tells them all.
    state.projects[name] = harbor.get(f"/projects/{number}")
    retention = (state.projects[name].get("metadata") or {}).get("retention_id")
    if retention:
        state.retentions[name] = harbor.get(f"/retentions/{retention}")
    state.immutable[name] = harbor.every(f"/projects/{number}/immutabletagrules")
    quotas = harbor.get("/quotas", reference="project", reference_id=str(number)) or []
    if quotas:
        state.quotas[name] = quotas[0]


def settle(harbor: Harbor, stated: Mapping[str, Any]) -> list[str]:
    """Change what differs until nothing does, and return what was done.

    Raises:
        HarborError: a request was refused, or something that was set does not stay.
    """
    done: list[str] = []
    missing: list[Change] = []
    for _ in range(ROUNDS):
        missing = plan(read(harbor, stated), stated)
        if not missing:
            return done
        for change in missing:
            harbor.send(change.method, change.path, change.body)
            done.append(change.what)
    left = plan(read(harbor, stated), stated)
    if left:
        raise HarborError(f"Harbor took this and does not hold it: {'; '.join(change.what for change in left)}")
    return done


def arguments() -> dict[str, Any]:
    """Return the module's arguments; the role's spec gives the meaning of each."""
    text, flag = {"type": "str", "required": True}, {"type": "bool", "required": True}
    number, words = {"type": "int", "required": True}, {"type": "list", "elements": "str", "required": True}
    keep = {"rule": text, "count": number, "repositories": text, "tags": text, "untagged": flag}
    project = {
        "name": text,
        "public": flag,
        "quota_gib": number,
        "scan_on_push": flag,
        "sbom_on_push": flag,
        "block_severity": text,
        "signed_only": flag,
        "immutable_tags": words,
        "keep": {"type": "list", "elements": "dict", "required": True, "options": keep},
        "keep_cron": text,
    }
    robot = {
        "name": text,
        "description": text,
        "projects": words,
        "may": words,
        "days": number,
        "secret": {"type": "str", "required": True, "no_log": True},
    }
    return {
        "url": text,
        "username": text,
        "password": {"type": "str", "required": True, "no_log": True},
        "ca_pem": {"type": "str", "default": ""},
        "projects": {"type": "list", "elements": "dict", "required": True, "options": project},
        "robots": {"type": "list", "elements": "dict", "required": True, "options": robot},
        "gc_cron": text,
        "gc_untagged": flag,
        "gc_workers": number,
        "scan_cron": text,
    }


def main() -> None:
    """Read the arguments, compare, change what differs."""
    module = AnsibleModule(argument_spec=arguments(), supports_check_mode=True)
    stated = module.params
    try:
        harbor = Harbor(stated["url"], (stated["username"], stated["password"]), stated["ca_pem"])
        done = [change.what for change in plan(read(harbor, stated), stated)] if module.check_mode else settle(harbor, stated)
    except (HarborError, OSError) as error:
        module.fail_json(
            msg=f"{error}. Fix: see that {stated['url']} serves Harbor and takes this account, then apply the phase registry again"
        )
    module.exit_json(changed=bool(done), changes=done, diff={"before": "", "after": "".join(f"{one}\n" for one in done)})


if __name__ == "__main__":
    main()
