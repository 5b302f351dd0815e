"""Runs of several hosts pass, fail or are unknown, by their result and by their speed."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.bench.fabric.group_runs import evaluate_group_run
from primus_bootstrap.bench.fabric.group_speeds import evaluate_group, evaluate_pairs, pair_medians
from primus_bootstrap.bench.fabric.pair_rounds import round_robin
from primus_bootstrap.bench.judging.floors import Floor, Floors
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.results.group_records import GroupAnswer, GroupRun, GroupRunResult
from primus_bootstrap.bench.results.reader import parse_lines
from primus_bootstrap.core.structured import read
from tests.unit.bench_group_rig import NOW, Hosts, line, step

if TYPE_CHECKING:
    from collections.abc import Mapping

PAIR = GroupRun(3, ("a", "b"))
SETTINGS = JudgingSettings()


def names(count: int) -> list[str]:
    """Return the names of hosts."""
    return [f"n{number}" for number in range(count)]


def answers(given: Mapping[str, dict[str, Any]]) -> dict[str, GroupAnswer]:
    """Return the answers of hosts."""
    return {host: read(GroupAnswer, answer) for host, answer in given.items()}


def pairs_of(hosts: Hosts, count: int) -> list[GroupRunResult]:
    """Run every pair of this many hosts."""
    return [evaluate_group_run(GroupRun(0, pair), answers(hosts.run(pair))) for pairs in round_robin(names(count)) for pair in pairs]


def evaluate(hosts: Hosts, count: int, floors: Floors = Floors()) -> dict[tuple[str, ...], Any]:  # noqa: B008 - it cannot change
    """Return the verdict on each pair."""
    return dict(evaluate_pairs(pairs_of(hosts, count), lambda _: "", floors, SETTINGS))


def test_a_run_that_passes_keeps_its_bus_bandwidths() -> None:
    """Other metrics are dropped, and the record is read as it was written."""
    given = {"a": {"step": step([line(300, 2), line(150, 2, metric="alg_gb_per_s")], seconds=4.0)}, "b": {"step": step(started=NOW + 9)}}
    run = evaluate_group_run(PAIR, answers(given))

    assert (run.answer, run.reason, run.seconds) == ("pass", "", 4.0)
    assert [result.value for result in run.results()] == [300]
    assert run.starts == {"a": NOW, "b": NOW + 9}
    assert read(GroupRunResult, json.loads(json.dumps(asdict(run)))) == run


@pytest.mark.parametrize(
    ("one", "other", "answer", "reason"),
    [
        ({"step": step([line(300, 2, correct=False)], code=1)}, {"step": step(code=1)}, "fail", "the result is wrong"),
        (
            {"step": step([line(0, 2, error="Connection reset")], code=1)},
            {"step": step(code=1)},
            "fail",
            "a: exit code 1: Connection reset",
        ),
        ({"step": step()}, {"step": step(code=-11, stderr="Segmentation fault")}, "fail", "b: exit code -11: Segmentation fault"),
        ({"step": step(code=77)}, {"step": step([line(0, 2, error="closed by peer")], code=1)}, "unknown", "a: it exceeded its time limit"),
        ({"step": step(code=1)}, {"step": step(error="no answer within 360 s", code=-9)}, "unknown", "b: no answer within 360 s"),
        ({"step": step([line(300, 2)])}, {}, "unknown", "b: it was lost"),
        ({"cut": "it was ended"}, {"absent": "jobs run on it: Slurm job 7"}, "unknown", "b: jobs run on it: Slurm job 7"),
        ({"step": step([line(300, 2)])}, {"step": step(jobs=["Slurm job 7"])}, "unknown", "b: jobs run on it: Slurm job 7"),
        ({"step": step([line(3, 2, correct=False)], code=1)}, {"step": step(code=1, jobs=["x"])}, "unknown", "b: jobs run on it: x"),
        (
            {"step": step(code=1)},
            {"step": step(code=3, stderr="there is no torch")},
            "unknown",
            "b: it could not start (exit code 3): there is",
        ),
        ({"step": step(code=1)}, {"step": step(code=143)}, "unknown", "b: it was killed from outside (exit code 143)"),
        (
            {"step": step(code=1, stderr="error: 98, Address in use EADDRINUSE")},
            {"step": step(code=1)},
            "unknown",
            "a: another program used the master",
        ),
        ({"step": step()}, {"step": step()}, "unknown", "wrote no bus bandwidth"),
        ({"step": step(["{torn"])}, {"step": step()}, "unknown", "wrote no bus bandwidth"),
    ],
)
def test_a_run_passes_fails_or_is_unknown(one: dict[str, Any], other: dict[str, Any], answer: str, reason: str) -> None:
    """A wrong result and a failed program fail; lost, hanging, ended and not started parts are unknown."""
    run = evaluate_group_run(PAIR, answers({"a": one, **({"b": other} if other else {})}))

    assert (run.answer, run.lines) == (answer, ())
    assert reason in run.reason


def test_a_result_of_several_hosts_counts_for_none_of_them() -> None:
    """It has the name of the first host and the number of the others."""
    several = parse_lines([line(300, 16).encode()], name="f").results[0]
    single = parse_lines([line(300, 1).encode()], name="f").results[0]

    assert (several.host, single.host) == ("n,+15", "n")


def test_a_slow_host_makes_its_pairs_fail() -> None:
    """Compared with the other pairs, which pass."""
    verdicts = evaluate(Hosts(slow={"n2": 1.3}), 8)

    assert {pair for pair, verdict in verdicts.items() if verdict.answer == "fail"} == {pair for pair in verdicts if "n2" in pair}
    assert {verdict.answer for pair, verdict in verdicts.items() if "n2" not in pair} == {"pass"}
    assert "pairs of MI300X" in next(verdict.reason for verdict in verdicts.values() if verdict.answer == "fail")


def test_few_pairs_are_not_compared() -> None:
    """Three pairs pass, but their speed is unknown."""
    verdicts = evaluate(Hosts(slow={"n2": 10.0}), 3)

    assert {(verdict.answer, verdict.code) for verdict in verdicts.values()} == {("pass", "no_reference")}
    assert "3 pairs are comparable, and 5 are needed" in next(iter(verdicts.values())).reason


def test_with_half_of_the_pairs_slow_all_are_unknown() -> None:
    """One slow host of four is in three of six pairs, so it is unknown which half is healthy."""
    assert {verdict.answer for verdict in evaluate(Hosts(slow={"n2": 10.0}), 4).values() if verdict.answer != "pass"} == {"unknown"}


def test_paths_of_different_kinds_are_not_compared() -> None:
    """Pairs across racks are slower by nature."""
    runs = pairs_of(Hosts(noise={frozenset(("n0", "n1")): 0.5}), 6)
    verdicts = evaluate_pairs(runs, lambda pair: "inside" if set(pair) == {"n0", "n1"} else "across", Floors(), SETTINGS)
    codes = {pair: (one.answer, one.code) for pair, one in verdicts.items()}

    assert codes.pop(("n0", "n1")) == ("pass", "no_reference")
    assert set(codes.values()) == {("pass", None)}


class _AnyFloor(Floors):
    """A floor for everything."""

    def find(self, *_: object) -> Floor:
        """Return the floor."""
        return Floor("MI300X", 250.0, 400.0, 62.5, "a data sheet")


def test_a_floor_is_enough_for_a_single_pair() -> None:
    """It needs no peers."""
    good = evaluate(Hosts(), 2, _AnyFloor())
    bad = evaluate(Hosts(slow={"n1": 2.0}), 2, _AnyFloor())

    assert [(verdict.answer, verdict.code) for verdict in good.values()] == [("pass", None)]
    assert [(verdict.answer, "below the floor" in verdict.reason) for verdict in bad.values()] == [("fail", True)]


def test_groups_are_compared_with_the_median_of_pairs() -> None:
    """Only a much slower group fails; sizes that differ by the rounding of a rank's share are comparable."""
    medians = pair_medians(pairs_of(Hosts(), 4), SETTINGS)
    group = GroupRun(0, ("n0", "n1", "n2"))

    found = [
        evaluate_group(evaluate_group_run(group, answers(Hosts(slow={"n2": slow}).run(group.hosts))), medians, SETTINGS).answer
        for slow in (1, 2, 3)
    ]

    assert found == ["pass", "pass", "fail"]
    assert pair_medians(pairs_of(Hosts(), 3), SETTINGS) == {}
    assert evaluate_group(evaluate_group_run(group, answers(Hosts(slow={"n2": 9}).run(group.hosts))), {}, SETTINGS)[0::2] == (
        "pass",
        "no_reference",
    )
