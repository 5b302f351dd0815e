#!/usr/bin/python
"""Configure projects, robot accounts, retention, garbage collection and scans of Harbor: the Ansible module `harbor_settings`.

Own module: no collection that ships with Ansible has one for Harbor. It reads the settings, changes those that differ, and reads them
again until none differs, so it reports a setting that Harbor accepts without storing it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.harbor_api import Harbor, HarborError
from ansible.module_utils.harbor_plan import Change, State, plan

if TYPE_CHECKING:
    from collections.abc import Mapping

# A project, the settings that need its id, a robot's secret; then one round without a difference.
ROUNDS = 4


def read(harbor: Harbor, settings: Mapping[str, Any]) -> State:
    """Read the state of everything that the settings contain."""
    state = State(gc=harbor.get("/system/gc/schedule"))
    if settings["scan_cron"]:
        state.scan = harbor.get("/system/scanAll/schedule")
    names = {project["name"] for project in settings["projects"]}
    for project in harbor.every("/projects", with_detail="false") if names else ():
        if project["name"] in names:
            _read_project(harbor, state, project)
    if settings["robots"]:
        prefix = (harbor.get("/configurations") or {}).get("robot_name_prefix") or {}
        state.robot_prefix = prefix.get("value") or state.robot_prefix
        state.robots = {robot["name"]: robot for robot in harbor.every("/robots")}
    for robot in settings["robots"]:
        name = state.robot_prefix + robot["name"]
        if name in state.robots:
            state.logins[name] = harbor.accepts(name, robot["secret"])
    return state


def _read_project(harbor: Harbor, state: State, project: Mapping[str, Any]) -> None:
    name, number = project["name"], project["project_id"]
    # The list may omit settings; a single project has all of them.
    state.projects[name] = harbor.get(f"/projects/{number}")
    retention = (state.projects[name].get("metadata") or {}).get("retention_id")
    if retention:
        state.retentions[name] = harbor.get(f"/retentions/{retention}")
    state.immutable[name] = harbor.every(f"/projects/{number}/immutabletagrules")
    quotas = harbor.get("/quotas", reference="project", reference_id=str(number)) or []
    if quotas:
        state.quotas[name] = quotas[0]


def apply(harbor: Harbor, settings: Mapping[str, Any]) -> list[str]:
    """Change the settings until none differs, and return the changes.

    Raises:
        HarborError: Harbor rejected a request, or did not store a setting.
    """
    done: list[str] = []
    missing: list[Change] = []
    for _ in range(ROUNDS):
        missing = plan(read(harbor, settings), settings)
        if not missing:
            return done
        for change in missing:
            harbor.send(change.method, change.path, change.body)
            done.append(change.what)
    left = plan(read(harbor, settings), settings)
    if left:
        raise HarborError(f"Harbor accepted these settings but did not store them: {'; '.join(change.what for change in left)}")
    return done


def arguments() -> dict[str, Any]:
    """Return the module's arguments; the role's spec gives the meaning of each."""
    text, flag = {"type": "str", "required": True}, {"type": "bool", "required": True}
    number, strings = {"type": "int", "required": True}, {"type": "list", "elements": "str", "required": True}
    keep = {"rule": text, "count": number, "repositories": text, "tags": text, "untagged": flag}
    project = {
        "name": text,
        "public": flag,
        "quota_gib": number,
        "scan_on_push": flag,
        "sbom_on_push": flag,
        "block_severity": text,
        "signed_only": flag,
        "immutable_tags": strings,
        "keep": {"type": "list", "elements": "dict", "required": True, "options": keep},
        "keep_cron": text,
    }
    robot = {
        "name": text,
        "description": text,
        "projects": strings,
        "may": strings,
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
    """Compare the settings, and change those that differ."""
    module = AnsibleModule(argument_spec=arguments(), supports_check_mode=True)
    settings = module.params
    try:
        harbor = Harbor(settings["url"], (settings["username"], settings["password"]), settings["ca_pem"])
        changes = [change.what for change in plan(read(harbor, settings), settings)] if module.check_mode else apply(harbor, settings)
    except (HarborError, OSError) as error:
        fix = f"check that {settings['url']} is Harbor and that harbor_admin_password is right, then apply the phase registry again"
        module.fail_json(msg=f"{error}. Fix: {fix}")
    module.exit_json(changed=bool(changes), changes=changes, diff={"before": "", "after": "".join(f"{one}\n" for one in changes)})


if __name__ == "__main__":
    main()
