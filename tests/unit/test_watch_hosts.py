"""primus_bootstrap.launch.watch.host_choice: the hosts of an attempt, and the return of excluded hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from primus_bootstrap.launch.watch.host_choice import choose
from primus_bootstrap.launch.watch.job_spec import ExcludedHost, Host, Job
from primus_bootstrap.launch.watch.job_state import Excluded, State
from primus_bootstrap.launch.watch.observation import Candidate, Candidates
from primus_bootstrap.launch.watch.restart_policy import initial_state

JOB = Job("a-000000", "a", "ada", "direct", 2, ("train",), gpus_per_node=8)


def host(name: str, **changes: Any) -> Candidate:
    """Return a host that answers; h3 and h4 are spares."""
    return replace(Candidate(Host(name, f"{name}.net"), answers=True, spare=name in {"h3", "h4"}), **changes)


def chosen(*candidates: Candidate, excluded: tuple[Excluded, ...] = (), **job: Any) -> tuple[str, ...] | str:
    """Return the names of the chosen hosts, or why there are not enough."""
    choice = choose(replace(JOB, **job), State("a-000000", excluded=excluded), Candidates(candidates))
    return choice.why or tuple(item.name for item in choice.hosts)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (host("h1"), ("h1", "h2")),
        (host("h1", answers=False), ("h2", "h4")),
        (host("h1", health="fail"), ("h2", "h4")),
        (host("h1", health="unknown"), ("h1", "h2")),
        (host("h1", busy="primus-job-b-000000-1.service"), ("h2", "h4")),
        (host("h1", gpus=4), ("h2", "h4")),
        (host("h1", gpus=8), ("h1", "h2")),
    ],
)
def test_a_spare_replaces_an_unusable_host(first: Candidate, expected: tuple[str, ...]) -> None:
    """Unknown health is accepted. Of two spares the one with passing health comes first."""
    assert chosen(first, host("h2"), host("h3"), host("h4", health="pass")) == expected


def test_hosts_are_shared_by_jobs_without_gpus() -> None:
    """A job on CPUs may run beside another."""
    assert chosen(host("h1", busy="another"), host("h2"), gpus_per_node=0) == ("h1", "h2")


def test_the_reason_is_given_for_each_missing_host() -> None:
    """The user sees what to repair."""
    assert chosen(host("h1", answers=False, why="timed out"), host("h2", gpus=4), host("h3", health="fail", why="disk full")) == (
        "2 hosts are needed and 0 are available: h1 does not answer (timed out); h2 has 4 GPUs; h3 is not healthy (disk full)"
    )


@pytest.mark.parametrize(
    ("hardware", "changes", "back"),
    [
        (False, {"health": "unknown"}, True),
        (False, {"health": "pass", "written": 101.0}, True),
        (False, {"health": "pass", "written": 99.0}, False),
        (False, {"health": "fail", "written": 101.0}, False),
        (False, {"answers": False}, False),
        (True, {"health": "unknown"}, False),
        (True, {"health": "pass", "written": 101.0}, True),
    ],
)
def test_an_excluded_host_returns_only_if_needed_and_healthy(
    hardware: bool,  # noqa: FBT001
    changes: dict[str, Any],
    back: bool,  # noqa: FBT001
) -> None:
    """Broken hardware needs a health record that is newer than the exclusion."""
    excluded = (Excluded("h1", 100.0, "x", "lost", hardware=hardware),)
    alone = chosen(host("h1", **changes), host("h2"), excluded=excluded)

    assert (alone == ("h1", "h2")) is back
    assert chosen(host("h1", **changes), host("h2"), host("h3"), excluded=excluded) == ("h2", "h3")


def test_hosts_left_out_at_submission_are_used_last() -> None:
    """A released host returns if no other is left."""
    job = replace(JOB, left_out=(ExcludedHost("h1", "is quarantined"),))
    fresh = initial_state(job, 100.0)
    first = choose(job, fresh, Candidates((host("h1"), host("h2"), host("h3"))))
    later = choose(job, fresh, Candidates((host("h1"), host("h2"))))

    assert [item.name for item in first.hosts] == ["h2", "h3"]
    assert ([item.name for item in later.hosts], later.returned) == (["h1", "h2"], ("h1",))


def test_the_longest_excluded_host_returns_first() -> None:
    """It is not excluded any more."""
    excluded = (Excluded("h1", 300.0, "x", "lost"), Excluded("h2", 200.0, "x", "lost"))
    choice = choose(JOB, State("a-000000", excluded=excluded), Candidates((host("h1"), host("h2"), host("h3"))))

    assert ([item.name for item in choice.hosts], choice.returned) == (["h2", "h3"], ("h2",))
    assert [item.host for item in choice.excluded] == ["h1"]
