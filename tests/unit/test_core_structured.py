"""primus_bootstrap.core.structured: plain data become typed values, and every mistake is reported with its path."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from primus_bootstrap.core.structured import NOT_EMPTY, InvalidDataError, Issue, at_least, matching, read, readable

Name = Annotated[str, matching(re.compile("[a-z]+"))]


@readable
@dataclass(frozen=True)
class Host:
    """A nested value."""

    name: Name
    gpus: int | None = None


@readable
@dataclass(frozen=True)
class Policy:
    """A value with every supported kind of hint."""

    backoff_s: Annotated[tuple[Annotated[int, at_least(0, 300)], ...], NOT_EMPTY] = (0, 10)
    timeout_s: float = 1.5
    on_fail: Literal["warn", "hold"] = "warn"
    enabled: bool = True
    folder: Path = Path("/tmp")  # noqa: S108 - never opened
    pair: tuple[str, int] = ("a", 1)
    options: Mapping[str, str | int] = field(default_factory=dict)
    anything: Any = None


@readable
@dataclass(frozen=True)
class Job:
    """The whole document."""

    id: Name
    nodes: int = 1
    hosts: tuple[Host, ...] = ()
    policy: Policy = field(default_factory=Policy)
    labels: Mapping[Name, str] = field(default_factory=dict)

    def issues(self) -> Iterator[Issue]:
        """Check fields against each other."""
        if len(self.hosts) > self.nodes:
            yield Issue("hosts", f"{len(self.hosts)} hosts for {self.nodes} nodes", "remove some")


def issues(data: Any, **options: Any) -> list[str]:
    """Return the mistakes of a job, as printed."""
    with pytest.raises(InvalidDataError) as caught:
        read(Job, data, **options)
    return [str(issue) for issue in caught.value.issues]


def test_valid_data_become_typed_values() -> None:
    """Lists become tuples, text becomes a path, and a whole number is accepted as a number."""
    policy = {
        "backoff_s": [1, 2],
        "timeout_s": 3,
        "on_fail": "hold",
        "enabled": False,
        "folder": "/data",
        "pair": ["x", 2],
        "options": {"a": 1, "b": "c"},
        "anything": [None],
    }
    job = read(Job, {"id": "a", "nodes": 2, "hosts": [{"name": "n", "gpus": None}, {"name": "m", "gpus": 8}], "policy": policy})

    assert job == Job(
        "a",
        2,
        (Host("n"), Host("m", 8)),
        Policy((1, 2), 3, "hold", enabled=False, folder=Path("/data"), pair=("x", 2), options={"a": 1, "b": "c"}, anything=[None]),
    )


def test_missing_fields_get_their_defaults() -> None:
    """Only fields without a default are required."""
    assert read(Job, {"id": "a"}) == Job("a")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"nodez": 1}, "nodez: unknown key"),
        ({"nodes": "two"}, "nodes: expected a whole number, found 'two'"),
        ({"nodes": True}, "nodes: expected a whole number, found True"),
        ({"nodes": 1.0}, "nodes: expected a whole number, found 1.0"),
        ({"hosts": {}}, "hosts: expected a list, found {}"),
        ({"hosts": ["n"]}, "hosts[0]: expected a mapping, found 'n'"),
        ({"hosts": [{}]}, "hosts[0].name: missing"),
        ({"hosts": [{"name": "n", "gpus": "8"}]}, "hosts[0].gpus: expected a whole number, found '8'"),
        ({"hosts": [{"name": "N"}]}, "hosts[0].name: expected text like [a-z]+, found 'N'"),
        ({"policy": {"backoff_s": [0, 1, -1]}}, "policy.backoff_s[2]: expected a number from 0 to 300, found -1"),
        ({"policy": {"backoff_s": []}}, "policy.backoff_s: expected at least one entry, found []"),
        ({"policy": {"timeout_s": False}}, "policy.timeout_s: expected a number, found False"),
        ({"policy": {"on_fail": "wrn"}}, "policy.on_fail: expected one of warn, hold, found 'wrn'"),
        ({"policy": {"enabled": 1}}, "policy.enabled: expected true or false, found 1"),
        ({"policy": {"folder": 1}}, "policy.folder: expected a path, found 1"),
        ({"policy": {"pair": ["x"]}}, "policy.pair: expected a list of 2 values, found ['x']"),
        ({"policy": {"options": {"a": None}}}, "policy.options.a: expected text or a whole number, found None"),
        ({"policy": None}, "policy: expected a mapping, found None"),
        ({"labels": {"A": "b"}}, "labels.A: expected text like [a-z]+, found 'A'"),
        ({"hosts": [{"name": "n"}, {"name": "m"}]}, "hosts: 2 hosts for 1 nodes"),
    ],
)
def test_a_mistake_is_reported_with_its_path(changes: dict[str, Any], expected: str) -> None:
    """A second mistake does not hide the first."""
    found = issues({"id": "a", "wrong": 1, **changes})

    assert sorted(found) == sorted(["wrong: unknown key", expected])


def test_a_similar_key_and_a_similar_choice_are_suggested() -> None:
    """The fix of each mistake is an edit."""
    with pytest.raises(InvalidDataError) as caught:
        read(Job, {"id": "a", "nodez": 1, "policy": {"on_fail": "wrn"}}, origin="job.json")

    assert {issue.path: issue.fix for issue in caught.value.issues} == {
        "nodez": "did you mean nodes?",
        "policy.on_fail": "did you mean warn?",
    }
    assert str(caught.value).startswith("job.json: nodez: unknown key\njob.json: policy.on_fail: expected")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - its own data


def test_a_document_other_than_a_mapping_is_refused() -> None:
    """Its path is empty."""
    assert issues([]) == ["expected a mapping, found []"]


def test_the_schema_is_checked() -> None:
    """A file of another release is recognised before its fields are misread."""
    assert read(Job, {"schema": "job/1", "id": "a"}, schema="job/1") == Job("a")
    assert issues({"schema": "job/2", "id": "a"}, schema="job/1") == ["schema: expected job/1, found 'job/2'"]
    assert issues({"schema": "job/1", "id": "a"}) == ["schema: unknown key"]


def test_keys_of_other_releases_can_be_ignored() -> None:
    """By path, or all that are unknown."""
    data = {"id": "a", "policy": {"old": 1}}

    assert read(Job, data, ignored=["policy.old"]) == Job("a")
    assert read(Job, {**data, "new": 1}, ignore_unknown=True) == Job("a")
    assert issues({**data, "new": 1}, ignored=["policy.old"]) == ["new: unknown key"]


def test_a_long_value_is_shortened_in_the_message() -> None:
    """A message fits a terminal, whatever the file holds."""
    assert len(issues({"id": "x" * 10_000 + "-"})[0]) < 300
