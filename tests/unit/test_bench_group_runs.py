"""Whether a run of several hosts went well, and whether it was fast: good, bad, or unknown."""

from __future__ import annotations

from typing import Any

import pytest

from primus_bootstrap.bench.fabric.group_runs import GroupRun, GroupRunResult, parse_ran, read_ran
from primus_bootstrap.bench.fabric.group_speeds import hold_against, judge_pairs, reference
from primus_bootstrap.bench.fabric.pair_rounds import round_robin
from primus_bootstrap.bench.judging.floors import Floor, Floors
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.results.reader import parse_lines
from tests.unit.bench_course_rig import NOW, Hosts, gave, line

PAIR = GroupRun(3, ("a", "b"))
SETTINGS = JudgingSettings()


def names(count: int) -> list[str]:
    """Return hosts."""
    return [f"n{number}" for number in range(count)]


def pairs_of(hosts: Hosts, count: int) -> list[GroupRunResult]:
    """Let every pair of so many hosts run."""
    return [read_ran(GroupRun(0, pair), hosts.run(pair)) for each in round_robin(names(count)) for pair in each]


def judged(hosts: Hosts, count: int, floors: Floors = Floors()) -> dict[tuple[str, ...], Any]:  # noqa: B008 - it cannot change
    """Return what is said of each pair."""
    return dict(judge_pairs(pairs_of(hosts, count), lambda _: "", floors, SETTINGS))


def test_a_run_that_ends_well_keeps_its_bus_bandwidths() -> None:
    """Only those; and the record reads back as it was."""
    said = {"a": {"step": gave([line(300, 2), line(150, 2, metric="alg_gb_per_s")], seconds=4.0)}, "b": {"step": gave(started=NOW + 9)}}
    ran = read_ran(PAIR, said)

    assert (ran.answer, ran.reason, ran.seconds) == ("pass", "", 4.0)
    assert [result.value for result in ran.results()] == [300]
    assert ran.starts == {"a": NOW, "b": NOW + 9}
    assert parse_ran(ran.to_json()) == ran


@pytest.mark.parametrize(
    ("one", "other", "answer", "reason"),
    [
        ({"step": gave([line(300, 2, correct=False)], code=1)}, {"step": gave(code=1)}, "fail", "the result is wrong"),
        ({"step": gave([line(0, 2, error="Connection reset")], code=1)}, {"step": gave(code=1)}, "fail", "a: exit 1: Connection reset"),
        ({"step": gave()}, {"step": gave(code=-11, stderr="Segmentation fault")}, "fail", "b: exit -11: Segmentation fault"),
        ({"step": gave(code=77)}, {"step": gave([line(0, 2, error="closed by peer")], code=1)}, "unknown", "a: it took longer"),
        ({"step": gave(code=1)}, {"step": gave(error="no answer within 360 s", code=-9)}, "unknown", "b: no answer within 360 s"),
        ({"step": gave([line(300, 2)])}, {}, "unknown", "b: it was lost"),
        ({"cut": "it was ended"}, {"absent": "jobs run on it: Slurm job 7"}, "unknown", "b: jobs run on it: Slurm job 7"),
        ({"step": gave([line(300, 2)])}, {"step": gave(jobs=["Slurm job 7"])}, "unknown", "b: jobs run on it: Slurm job 7"),
        ({"step": gave([line(3, 2, correct=False)], code=1)}, {"step": gave(code=1, jobs=["x"])}, "unknown", "b: jobs run on it: x"),
        ({"step": gave(code=1)}, {"step": gave(code=3, stderr="there is no torch")}, "unknown", "b: it could not start (exit 3): there is"),
        ({"step": gave(code=1)}, {"step": gave(code=143)}, "unknown", "b: somebody ended it (exit 143)"),
        ({"step": gave(code=1, stderr="error: 98, Address in use EADDRINUSE")}, {"step": gave(code=1)}, "unknown", "a: the port of the"),
        ({"step": gave()}, {"step": gave()}, "unknown", "left no bus bandwidth"),
        ({"step": gave(["{torn"])}, {"step": gave()}, "unknown", "left no bus bandwidth"),
    ],
)
def test_good_bad_or_unknown(one: dict[str, Any], other: dict[str, Any], answer: str, reason: str) -> None:
    """A wrong result and a failing run are bad; what was lost, hung, could not start or was ended says nothing of anybody."""
    ran = read_ran(PAIR, {"a": one, **({"b": other} if other else {})})

    assert (ran.answer, ran.lines) == (answer, ())
    assert reason in ran.reason


def test_a_result_of_several_hosts_is_nobodys_alone() -> None:
    """It bears the first one's name and how many more; one of a single host is that host's."""
    several = parse_lines([line(300, 16).encode()], name="f").results[0]
    single = parse_lines([line(300, 1).encode()], name="f").results[0]

    assert (several.host, single.host) == ("n,+15", "n")


def test_a_slow_host_makes_its_pairs_fail() -> None:
    """Against the other pairs; those fail, and no others."""
    said = judged(Hosts(slow={"n2": 1.3}), 8)

    assert {pair for pair, each in said.items() if each.answer == "fail"} == {pair for pair in said if "n2" in pair}
    assert {each.answer for pair, each in said.items() if "n2" not in pair} == {"pass"}
    assert "pairs of MI300X" in next(each.reason for each in said.values() if each.answer == "fail")


def test_few_pairs_accuse_nobody_of_being_slow() -> None:
    """Three pairs are no yardstick for each other: they work, and that is all that is known."""
    said = judged(Hosts(slow={"n2": 10.0}), 3)

    assert {(each.answer, each.code) for each in said.values()} == {("pass", "no_yardstick")}
    assert "3 pairs are alike, and 5 are needed" in next(iter(said.values())).reason


def test_where_half_of_the_pairs_are_slow_it_is_unknown() -> None:
    """Of four hosts one slow one spoils three of six pairs: which kind is the healthy one is not told by counting."""
    assert {each.answer for each in judged(Hosts(slow={"n2": 10.0}), 4).values() if each.answer != "pass"} == {"unknown"}


def test_paths_of_different_kinds_are_not_compared() -> None:
    """Pairs across racks are slower by nature; too few of a kind have no yardstick."""
    ran = pairs_of(Hosts(noise={frozenset(("n0", "n1")): 0.5}), 6)
    said = judge_pairs(ran, lambda pair: "inside" if set(pair) == {"n0", "n1"} else "across", Floors(), SETTINGS)
    codes = {pair: (one.answer, one.code) for pair, one in said.items()}

    assert codes.pop(("n0", "n1")) == ("pass", "no_yardstick")
    assert set(codes.values()) == {("pass", None)}


class _Stated(Floors):
    """A floor for everything."""

    def find(self, *_: object) -> Floor:
        """Return it."""
        return Floor("MI300X", 250.0, 400.0, 62.5, "a data sheet")


def test_a_stated_floor_judges_a_single_pair() -> None:
    """No peers are needed then."""
    good = judged(Hosts(), 2, _Stated())
    bad = judged(Hosts(slow={"n1": 2.0}), 2, _Stated())

    assert [(each.answer, each.code) for each in good.values()] == [("pass", None)]
    assert [(each.answer, "below the floor" in each.reason) for each in bad.values()] == [("fail", True)]


def test_groups_are_held_against_the_median_of_pairs() -> None:
    """A group that is far slower is bad; one that is somewhat slower, as large ones are, is not; sizes that a rank rounds off compare."""
    medians = reference(pairs_of(Hosts(), 4), SETTINGS)
    group = GroupRun(0, ("n0", "n1", "n2"))

    answers = [hold_against(read_ran(group, Hosts(slow={"n2": slow}).run(group.hosts)), medians, SETTINGS).answer for slow in (1, 2, 3)]

    assert answers == ["pass", "pass", "fail"]
    assert reference(pairs_of(Hosts(), 3), SETTINGS) == {}
    assert hold_against(read_ran(group, Hosts(slow={"n2": 9}).run(group.hosts)), {}, SETTINGS)[0::2] == ("pass", "no_yardstick")
