# ruff: noqa: INP001 (Ansible loads it by path)
"""What has to change in a Harbor: pure functions over what it holds and what is stated. Nothing that is not stated is touched or removed.

Fields and words are those of Harbor's swagger.yaml 2.15.1 and of its handlers (retention.go, gc.go, robot.go of the same release).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

GIB = 2**30
# Which rights a word of harbor_robots[].may stands for (src/common/rbac/const.go, scope project).
RIGHTS = {
    "pull": (("repository", "pull"), ("artifact", "read")),
    "push": (("repository", "pull"), ("repository", "push"), ("artifact", "read"), ("artifact", "create")),
    "delete": (("repository", "delete"), ("artifact", "delete")),
    "scan": (("scan", "create"), ("scan", "read")),
}
# The two rule templates of retention that count nothing are not offered: `always` keeps everything.
TEMPLATES = {
    "latest_pushed": "latestPushedK",
    "latest_pulled": "latestPulledN",
    "pushed_within_days": "nDaysSinceLastPush",
    "pulled_within_days": "nDaysSinceLastPull",
}


@dataclass(frozen=True)
class Change:
    """One request that makes Harbor hold what is stated. `what` is told to people and holds no secret; the body may."""

    what: str
    method: str
    path: str
    body: Mapping[str, Any]


@dataclass
class State:
    """What a Harbor holds, as its API tells it."""

    projects: dict[str, Any] = field(default_factory=dict)
    retentions: dict[str, Any] = field(default_factory=dict)
    immutable: dict[str, list[Any]] = field(default_factory=dict)
    quotas: dict[str, Any] = field(default_factory=dict)
    robots: dict[str, Any] = field(default_factory=dict)
    logins: dict[str, bool] = field(default_factory=dict)
    robot_prefix: str = "robot$"
    gc: Any = None
    scan: Any = None


def plan(state: State, stated: Mapping[str, Any]) -> list[Change]:
    """Return the requests that are missing. A project's details follow once the project is there."""
    found: list[Change] = []
    for project in stated["projects"]:
        found += _project(state, project)
    for robot in stated["robots"]:
        found += _robot(state, robot)
    if stated["gc_cron"]:
        found += _gc(state.gc, stated)
    if stated["scan_cron"]:
        found += _scan(state.scan, stated["scan_cron"])
    return found


def metadata(project: Mapping[str, Any]) -> dict[str, str]:
    """Return a project's settings in Harbor's spelling, where true is a word."""
    said = {
        "public": project["public"],
        "auto_scan": project["scan_on_push"],
        "auto_sbom_generation": project["sbom_on_push"],
        "enable_content_trust_cosign": project["signed_only"],
        "prevent_vul": bool(project["block_severity"]),
    }
    words = {name: "true" if value else "false" for name, value in said.items()}
    return {**words, "severity": project["block_severity"]} if project["block_severity"] else words


def _project(state: State, project: Mapping[str, Any]) -> Iterator[Change]:
    name, wanted = project["name"], metadata(project)
    storage = project["quota_gib"] * GIB if project["quota_gib"] else -1
    held = state.projects.get(name)
    if held is None:
        yield Change(f"project {name} comes", "POST", "/projects", {"project_name": name, "metadata": wanted, "storage_limit": storage})
        return
    there = held.get("metadata") or {}
    differs = {key: value for key, value in wanted.items() if (there.get(key) or "false") != value}
    if differs:
        told = ", ".join(f"{key}={value}" for key, value in sorted(differs.items()))
        yield Change(f"project {name}: {told}", "PUT", f"/projects/{held['project_id']}", {"metadata": differs})
    quota = state.quotas.get(name)
    if quota and (quota.get("hard") or {}).get("storage") != storage:
        yield Change(f"project {name}: quota {storage} bytes", "PUT", f"/quotas/{quota['id']}", {"hard": {"storage": storage}})
    yield from _retention(state, project, held["project_id"])
    for pattern in project["immutable_tags"]:
        if ("**", pattern) not in {immutable_of(rule) for rule in state.immutable.get(name, ())}:
            yield Change(
                f"project {name}: tags {pattern} cannot be overwritten",
                "POST",
                f"/projects/{held['project_id']}/immutabletagrules",
                immutable_rule(pattern),
            )


def immutable_rule(pattern: str) -> dict[str, Any]:
    """Return a rule after which nobody overwrites or deletes the tags that fit."""
    return {
        "disabled": False,
        "action": "immutable",
        "template": "immutable_template",
        "tag_selectors": [{"kind": "doublestar", "decoration": "matches", "pattern": pattern}],
        "scope_selectors": {"repository": [{"kind": "doublestar", "decoration": "repoMatches", "pattern": "**"}]},
    }


def immutable_of(rule: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the repositories and tags that a rule in force fixes; None where it is another kind of rule."""
    tags, repositories = rule.get("tag_selectors") or [], (rule.get("scope_selectors") or {}).get("repository") or []
    if rule.get("disabled") or len(tags) != 1 or len(repositories) != 1:
        return None
    if tags[0].get("decoration") != "matches" or repositories[0].get("decoration") != "repoMatches":
        return None
    return str(repositories[0].get("pattern")), str(tags[0].get("pattern"))


def _retention(state: State, project: Mapping[str, Any], project_id: int) -> Iterator[Change]:
    if not project["keep"]:
        return
    wanted = {
        "algorithm": "or",
        "rules": [retention_rule(rule) for rule in project["keep"]],
        "trigger": {"kind": "Schedule", "settings": {"cron": project["keep_cron"]}, "references": {}},
        "scope": {"level": "project", "ref": project_id},
    }
    held, what = state.retentions.get(project["name"]), f"project {project['name']}: what is kept, at {project['keep_cron']}"
    if held is None:
        yield Change(what, "POST", "/retentions", wanted)
    elif retention_of(held) != retention_of(wanted):
        yield Change(what, "PUT", f"/retentions/{held['id']}", {**wanted, "id": held["id"]})


def retention_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return one rule of what is kept, in Harbor's spelling."""
    template = TEMPLATES[rule["rule"]]
    extras = json.dumps({"untagged": rule["untagged"]})
    return {
        "disabled": False,
        "action": "retain",
        "template": template,
        "params": {template: rule["count"]},
        "tag_selectors": [{"kind": "doublestar", "decoration": "matches", "pattern": rule["tags"], "extras": extras}],
        "scope_selectors": {"repository": [{"kind": "doublestar", "decoration": "repoMatches", "pattern": rule["repositories"]}]},
    }


def retention_of(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a policy says, without ids and priorities that Harbor gives."""
    trigger = policy.get("trigger") or {}
    return {
        "algorithm": policy.get("algorithm"),
        "kind": trigger.get("kind"),
        "cron": (trigger.get("settings") or {}).get("cron"),
        "rules": [_rule_of(rule) for rule in policy.get("rules") or ()],
    }


def _rule_of(rule: Mapping[str, Any]) -> dict[str, Any]:
    selectors = [*(rule.get("tag_selectors") or ()), *((rule.get("scope_selectors") or {}).get("repository") or ())]
    return {
        "on": not rule.get("disabled"),
        "action": rule.get("action"),
        "params": {key: int(value) for key, value in (rule.get("params") or {}).items()},
        "template": rule.get("template"),
        "selectors": [
            (one.get("kind"), one.get("decoration"), one.get("pattern"), json.loads(one.get("extras") or "{}").get("untagged", False))
            for one in selectors
        ],
    }


def permissions(robot: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a robot's rights, one entry a project; without projects named, in all of them."""
    access = sorted({right for word in robot["may"] for right in RIGHTS[word]})
    listed = [{"resource": resource, "action": action} for resource, action in access]
    return [{"kind": "project", "namespace": project, "access": listed} for project in robot["projects"] or ["*"]]


def _robot(state: State, robot: Mapping[str, Any]) -> Iterator[Change]:
    full = state.robot_prefix + robot["name"]
    wanted = {"description": robot["description"], "level": "system", "duration": robot["days"] or -1, "disable": False}
    held = state.robots.get(full)
    if held is None:
        yield Change(f"robot {full} comes", "POST", "/robots", {**wanted, "name": robot["name"], "permissions": permissions(robot)})
        return
    body = {**wanted, "name": full, "permissions": permissions(robot)}
    differs = [key for key, value in wanted.items() if held.get(key, "" if key == "description" else None) != value]
    if _rights(held.get("permissions") or ()) != _rights(body["permissions"]):
        differs.append("permissions")
    if differs:
        yield Change(f"robot {full}: {', '.join(sorted(differs))}", "PUT", f"/robots/{held['id']}", body)
    if not state.logins.get(full):
        # Harbor makes up a secret when a robot comes; the stated one can only be set afterwards.
        yield Change(f"robot {full} gets its secret", "PATCH", f"/robots/{held['id']}", {"secret": robot["secret"]})


def _rights(listed: Sequence[Mapping[str, Any]]) -> set[tuple[str, str, str, str]]:
    return {
        (one.get("kind", ""), one.get("namespace", ""), access.get("resource", ""), access.get("action", ""))
        for one in listed
        for access in one.get("access") or ()
    }


def _gc(held: Any, stated: Mapping[str, Any]) -> Iterator[Change]:
    wanted = {"delete_untagged": stated["gc_untagged"], "workers": stated["gc_workers"]}
    schedule = (held or {}).get("schedule") or {}
    parameters = json.loads((held or {}).get("job_parameters") or "{}")
    same = schedule.get("cron") == stated["gc_cron"] and all(parameters.get(key) == value for key, value in wanted.items())
    if not same or parameters.get("dry_run"):
        body = {"schedule": {"type": "Custom", "cron": stated["gc_cron"]}, "parameters": {**wanted, "dry_run": False}}
        yield Change(f"collection of what nothing names any more: {stated['gc_cron']}", "PUT", "/system/gc/schedule", body)


def _scan(held: Any, cron: str) -> Iterator[Change]:
    if ((held or {}).get("schedule") or {}).get("cron") != cron:
        yield Change(f"scan of all images: {cron}", "PUT", "/system/scanAll/schedule", {"schedule": {"type": "Custom", "cron": cron}})
