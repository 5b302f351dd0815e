"""Module `harbor_settings`, run against a fake Harbor that follows its swagger file."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.harbor_rig import HarborOnLoopback, serving
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = load_role_module("harbor", "harbor_settings")
PASSWORD = "Secret-of-admin-1"
KEEP = {"rule": "latest_pushed", "count": 10, "repositories": "**", "tags": "**", "untagged": False}
PROJECT: dict[str, Any] = {
    "name": "train",
    "public": False,
    "quota_gib": 100,
    "scan_on_push": True,
    "sbom_on_push": False,
    "block_severity": "critical",
    "signed_only": True,
    "immutable_tags": ["v*"],
    "keep": [KEEP],
    "keep_cron": "0 30 2 * * *",
}
ROBOT: dict[str, Any] = {
    "name": "nodes",
    "description": "the hosts of the cluster",
    "projects": ["train"],
    "may": ["pull"],
    "days": 0,
    "secret": "Secret-of-nodes-1",
}
STATED: dict[str, Any] = {
    "projects": [PROJECT],
    "robots": [ROBOT],
    "gc_cron": "0 0 3 * * 6",
    "gc_untagged": True,
    "gc_workers": 2,
    "scan_cron": "0 0 1 * * *",
}


@pytest.fixture(name="harbor")
def fixture_harbor() -> Iterator[HarborOnLoopback]:
    """A new Harbor on loopback."""
    with serving(HarborOnLoopback()) as harbor:
        yield harbor


def settle(harbor: HarborOnLoopback, changed: dict[str, Any], password: str = PASSWORD) -> list[str]:
    """Run the module against it."""
    done: list[str] = SETTINGS.apply(SETTINGS.Harbor(harbor.url, ("admin", password)), changed)
    return done


def test_all_settings_are_applied_and_second_run_writes_nothing(harbor: HarborOnLoopback) -> None:
    """Project, signature policy, quota, retention, immutable tags, robot, garbage collection and scan."""
    settle(harbor, STATED)
    first, harbor.writes = harbor.writes, []
    again = settle(harbor, STATED)

    assert len(first) == 7
    assert (again, harbor.writes) == ([], [])
    assert harbor.projects[1]["metadata"] == {
        "public": "false",
        "auto_scan": "true",
        "auto_sbom_generation": "false",
        "enable_content_trust_cosign": "true",
        "prevent_vul": "true",
        "severity": "critical",
        "retention_id": "1",
    }
    assert harbor.quotas[2]["hard"] == {"storage": 100 * 2**30}
    assert harbor.accounts["robot$nodes"] == "Secret-of-nodes-1"
    assert harbor.schedules["gc"]["schedule"] == {"type": "Custom", "cron": "0 0 3 * * 6"}


def test_only_differences_are_written(harbor: HarborOnLoopback) -> None:
    """Each change is one request; the message names it."""
    settle(harbor, STATED)
    changed = copy.deepcopy(STATED)
    changed["projects"][0] |= {"signed_only": False, "quota_gib": 0, "keep": [{**KEEP, "count": 20}]}
    changed["robots"][0] |= {"may": ["push"], "secret": "Another-secret-2"}
    changed["gc_workers"] = 3
    harbor.writes = []

    done = settle(harbor, changed)

    assert harbor.writes == [
        "PUT /projects/2",
        "PUT /quotas/12",
        "PUT /retentions/1",
        "PUT /robots/1",
        "PATCH /robots/1",
        "PUT /system/gc/schedule",
    ]
    assert done[0] == "project train: enable_content_trust_cosign=false"
    assert harbor.quotas[2]["hard"] == {"storage": -1}
    assert not [one for one in done if "Another-secret-2" in one]


def test_unlisted_entries_stay(harbor: HarborOnLoopback) -> None:
    """Foreign projects, robots and settings are neither changed nor removed."""
    harbor.robots.append({"id": 1, "name": "robot$theirs", "level": "system", "duration": -1, "permissions": []})
    before = copy.deepcopy(harbor.projects[0])

    settle(harbor, STATED)

    assert harbor.projects[0] == before
    assert [robot["name"] for robot in harbor.robots] == ["robot$theirs", "robot$nodes"]


def test_ignored_setting_is_reported(harbor: HarborOnLoopback) -> None:
    """A field that Harbor accepts without storing is reported by name."""
    harbor.forgets = "enable_content_trust_cosign"

    with pytest.raises(SETTINGS.HarborError, match=r"did not store them: project train: enable_content_trust_cosign=true"):
        settle(harbor, STATED)


def test_interrupted_run_is_completed(harbor: HarborOnLoopback) -> None:
    """A robot without its secret and a project without its settings."""
    api = SETTINGS.Harbor(harbor.url, ("admin", PASSWORD))
    for change in SETTINGS.plan(SETTINGS.read(api, STATED), STATED)[:2]:
        api.send(change.method, change.path, change.body)

    settle(harbor, STATED)

    assert harbor.accounts["robot$nodes"] == "Secret-of-nodes-1"
    assert [len(harbor.retentions), len(harbor.immutable[2])] == [1, 1]


def test_lists_are_read_page_by_page(harbor: HarborOnLoopback) -> None:
    """A project on the second page is not created again."""
    harbor.projects += [{"project_id": number, "name": f"p{number}", "metadata": {}} for number in range(2, 205)]
    harbor.quotas |= {number: {"id": number + 10, "hard": {"storage": -1}} for number in range(2, 205)}

    settle(harbor, {**STATED, "projects": [{**PROJECT, "name": "p204"}], "robots": []})

    assert len(harbor.projects) == 204


@pytest.mark.parametrize(("password", "message"), [("wrong", "401, unauthorized")])
def test_rejection_contains_harbors_message(harbor: HarborOnLoopback, password: str, message: str) -> None:
    """A wrong administrator password ends the run before any write."""
    with pytest.raises(SETTINGS.HarborError, match=message):
        settle(harbor, STATED, password)

    assert harbor.writes == []


def test_no_answer_is_a_separate_error(harbor: HarborOnLoopback) -> None:
    """Covers a closed port and a server other than Harbor."""
    api = SETTINGS.Harbor("http://127.0.0.1:1", ("admin", "x"), timeout_s=2)

    with pytest.raises(SETTINGS.HarborError, match="refused"):
        api.get("/health")
    assert harbor.writes == []
