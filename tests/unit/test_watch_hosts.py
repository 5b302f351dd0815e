"""primus_bootstrap.launch.watch.host_choice: which hosts an attempt gets, and when an excluded one comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from primus_bootstrap.launch.watch.host_choice import choose
from primus_bootstrap.launch.watch.job_spec import Host, Job, LeftOut
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
def test_a_spare_takes_the_place_of_a_host_that_cannot_be_taken(first: Candidate, expected: tuple[str, ...]) -> None:
    """Unknown health speaks neither for nor against a host; of two spares the one whose health passes comes first."""
    assert chosen(first, host("h2"), host("h3"), host("h4", health="pass")) == expected


def test_hosts_are_shared_where_no_gpus_are_asked_for() -> None:
    """A job on CPUs may run beside another."""
    assert chosen(host("h1", busy="another"), host("h2"), gpus_per_node=0) == ("h1", "h2")


def test_why_there_are_not_enough_hosts_is_said_for_each() -> None:
    """Whoever reads it knows what to mend."""
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
def test_an_excluded_host_comes_back_only_when_needed_and_only_with_what_speaks_for_it(
    hardware: bool,  # noqa: FBT001
    changes: dict[str, Any],
    back: bool,  # noqa: FBT001
) -> None:
    """A record of before the exclusion proves nothing; broken hardware needs a newer one."""
    excluded = (Excluded("h1", 100.0, "x", "lost", hardware=hardware),)
    alone = chosen(host("h1", **changes), host("h2"), excluded=excluded)

    assert (alone == ("h1", "h2")) is back
    assert chosen(host("h1", **changes), host("h2"), host("h3"), excluded=excluded) == ("h2", "h3")


def test_hosts_that_the_submission_left_out_are_taken_last() -> None:
    """A job that nobody has watched yet keeps off them; one that is released by then comes back where no other is left."""
    job = replace(JOB, left_out=(LeftOut("h1", "is quarantined"),))
    fresh = initial_state(job, 100.0)
    first = choose(job, fresh, Candidates((host("h1"), host("h2"), host("h3"))))
    later = choose(job, fresh, Candidates((host("h1"), host("h2"))))

    assert [item.name for item in first.hosts] == ["h2", "h3"]
    assert ([item.name for item in later.hosts], later.returned) == (["h1", "h2"], ("h1",))


def test_the_longest_excluded_comes_back_first() -> None:
    """And leaves the list of the excluded."""
    excluded = (Excluded("h1", 300.0, "x", "lost"), Excluded("h2", 200.0, "x", "lost"))
    choice = choose(JOB, State("a-000000", excluded=excluded), Candidates((host("h1"), host("h2"), host("h3"))))

    assert ([item.name for item in choice.hosts], choice.returned) == (["h2", "h3"], ("h2",))
    assert [item.host for item in choice.excluded] == ["h1"]
