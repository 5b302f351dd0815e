# ruff: noqa: INP001 (Ansible loads it by path)
"""Compute the requests that bring a Harbor to its configured settings. Unlisted entries are neither changed nor removed.

Fields and values are those of Harbor's swagger.yaml 2.15.1 and of its handlers (retention.go, gc.go, robot.go of the same release).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

GIB = 2**30
# The rights of each value of harbor_robots[].may (src/common/rbac/const.go, scope project).
RIGHTS = {
    "pull": (("repository", "pull"), ("artifact", "read")),
    "push": (("repository", "pull"), ("repository", "push"), ("artifact", "read"), ("artifact", "create")),
    "delete": (("repository", "delete"), ("artifact", "delete")),
    "scan": (("scan", "create"), ("scan", "read")),
}
# The retention templates that count nothing are not supported; `always` retains everything.
TEMPLATES = {
    "latest_pushed": "latestPushedK",
    "latest_pulled": "latestPulledN",
    "pushed_within_days": "nDaysSinceLastPush",
    "pulled_within_days": "nDaysSinceLastPull",
}


@dataclass(frozen=True)
class Change:
    """One request. `what` is shown to people and contains no secret; the body may."""

    what: str
    method: str
    path: str
    body: Mapping[str, Any]


@dataclass
class State:
    """The current settings of a Harbor, as its API returns them."""

    projects: dict[str, Any] = field(default_factory=dict)
    retentions: dict[str, Any] = field(default_factory=dict)
    immutable: dict[str, list[Any]] = field(default_factory=dict)
    quotas: dict[str, Any] = field(default_factory=dict)
    robots: dict[str, Any] = field(default_factory=dict)
    logins: dict[str, bool] = field(default_factory=dict)
    robot_prefix: str = "robot$"
    gc: Any = None
    scan: Any = None


def plan(state: State, settings: Mapping[str, Any]) -> list[Change]:
    """Return the necessary requests. A project's details follow in the next round, once the project exists."""
    found: list[Change] = []
    for project in settings["projects"]:
        found += _project(state, project)
    for robot in settings["robots"]:
        found += _robot(state, robot)
    if settings["gc_cron"]:
        found += _gc(state.gc, settings)
    if settings["scan_cron"]:
        found += _scan(state.scan, settings["scan_cron"])
    return found


def metadata(project: Mapping[str, Any]) -> dict[str, str]:
    """Return a project's metadata as Harbor stores it, with `true` and `false` as strings."""
    flags = {
        "public": project["public"],
        "auto_scan": project["scan_on_push"],
        "auto_sbom_generation": project["sbom_on_push"],
        "enable_content_trust_cosign": project["signed_only"],
        "prevent_vul": bool(project["block_severity"]),
    }
    strings = {name: "true" if value else "false" for name, value in flags.items()}
    return {**strings, "severity": project["block_severity"]} if project["block_severity"] else strings


def _project(state: State, project: Mapping[str, Any]) -> Iterator[Change]:
    name, expected = project["name"], metadata(project)
    storage = project["quota_gib"] * GIB if project["quota_gib"] else -1
    current = state.projects.get(name)
    if current is None:
        body = {"project_name": name, "metadata": expected, "storage_limit": storage}
        yield Change(f"create project {name}", "POST", "/projects", body)
        return
    values = current.get("metadata") or {}
    differs = {key: value for key, value in expected.items() if (values.get(key) or "false") != value}
    if differs:
        listed = ", ".join(f"{key}={value}" for key, value in sorted(differs.items()))
        yield Change(f"project {name}: {listed}", "PUT", f"/projects/{current['project_id']}", {"metadata": differs})
    quota = state.quotas.get(name)
    if quota and (quota.get("hard") or {}).get("storage") != storage:
        yield Change(f"project {name}: quota {storage} bytes", "PUT", f"/quotas/{quota['id']}", {"hard": {"storage": storage}})
    yield from _retention(state, project, current["project_id"])
    for pattern in project["immutable_tags"]:
        if ("**", pattern) not in {immutable_of(rule) for rule in state.immutable.get(name, ())}:
            yield Change(
                f"project {name}: tags {pattern} cannot be overwritten",
                "POST",
                f"/projects/{current['project_id']}/immutabletagrules",
                immutable_rule(pattern),
            )


def immutable_rule(pattern: str) -> dict[str, Any]:
    """Return a rule that prevents overwriting and deleting matching tags."""
    return {
        "disabled": False,
        "action": "immutable",
        "template": "immutable_template",
        "tag_selectors": [{"kind": "doublestar", "decoration": "matches", "pattern": pattern}],
        "scope_selectors": {"repository": [{"kind": "doublestar", "decoration": "repoMatches", "pattern": "**"}]},
    }


def immutable_of(rule: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the repositories and tags of an enabled rule; None if it has another form."""
    tags, repositories = rule.get("tag_selectors") or [], (rule.get("scope_selectors") or {}).get("repository") or []
    if rule.get("disabled") or len(tags) != 1 or len(repositories) != 1:
        return None
    if tags[0].get("decoration") != "matches" or repositories[0].get("decoration") != "repoMatches":
        return None
    return str(repositories[0].get("pattern")), str(tags[0].get("pattern"))


def _retention(state: State, project: Mapping[str, Any], project_id: int) -> Iterator[Change]:
    if not project["keep"]:
        return
    expected = {
        "algorithm": "or",
        "rules": [retention_rule(rule) for rule in project["keep"]],
        "trigger": {"kind": "Schedule", "settings": {"cron": project["keep_cron"]}, "references": {}},
        "scope": {"level": "project", "ref": project_id},
    }
    current, what = state.retentions.get(project["name"]), f"project {project['name']}: retention at {project['keep_cron']}"
    if current is None:
        yield Change(what, "POST", "/retentions", expected)
    elif retention_of(current) != retention_of(expected):
        yield Change(what, "PUT", f"/retentions/{current['id']}", {**expected, "id": current["id"]})


def retention_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return one retention rule in Harbor's format."""
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
    """Return the comparable part of a retention policy, without the ids and priorities that Harbor adds."""
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
    """Return a robot's rights, one entry per project; without projects, one entry for all."""
    access = sorted({right for action in robot["may"] for right in RIGHTS[action]})
    listed = [{"resource": resource, "action": action} for resource, action in access]
    return [{"kind": "project", "namespace": project, "access": listed} for project in robot["projects"] or ["*"]]


def _robot(state: State, robot: Mapping[str, Any]) -> Iterator[Change]:
    full = state.robot_prefix + robot["name"]
    expected = {"description": robot["description"], "level": "system", "duration": robot["days"] or -1, "disable": False}
    current = state.robots.get(full)
    if current is None:
        yield Change(f"create robot {full}", "POST", "/robots", {**expected, "name": robot["name"], "permissions": permissions(robot)})
        return
    body = {**expected, "name": full, "permissions": permissions(robot)}
    differs = [key for key, value in expected.items() if current.get(key, "" if key == "description" else None) != value]
    if _rights(current.get("permissions") or ()) != _rights(body["permissions"]):
        differs.append("permissions")
    if differs:
        yield Change(f"robot {full}: {', '.join(sorted(differs))}", "PUT", f"/robots/{current['id']}", body)
    if not state.logins.get(full):
        # Harbor generates a secret for a new robot; the configured one can only be set afterwards.
        yield Change(f"set the secret of robot {full}", "PATCH", f"/robots/{current['id']}", {"secret": robot["secret"]})


def _rights(listed: Sequence[Mapping[str, Any]]) -> set[tuple[str, str, str, str]]:
    return {
        (one.get("kind", ""), one.get("namespace", ""), access.get("resource", ""), access.get("action", ""))
        for one in listed
        for access in one.get("access") or ()
    }


def _gc(current: Any, settings: Mapping[str, Any]) -> Iterator[Change]:
    expected = {"delete_untagged": settings["gc_untagged"], "workers": settings["gc_workers"]}
    schedule = (current or {}).get("schedule") or {}
    parameters = json.loads((current or {}).get("job_parameters") or "{}")
    same = schedule.get("cron") == settings["gc_cron"] and all(parameters.get(key) == value for key, value in expected.items())
    if not same or parameters.get("dry_run"):
        body = {"schedule": {"type": "Custom", "cron": settings["gc_cron"]}, "parameters": {**expected, "dry_run": False}}
        yield Change(f"garbage collection: {settings['gc_cron']}", "PUT", "/system/gc/schedule", body)


def _scan(current: Any, cron: str) -> Iterator[Change]:
    if ((current or {}).get("schedule") or {}).get("cron") != cron:
        yield Change(f"scan of all images: {cron}", "PUT", "/system/scanAll/schedule", {"schedule": {"type": "Custom", "cron": cron}})
