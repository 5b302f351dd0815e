"""Judging results: who fails, who passes, what is not known and why, and what is measured again."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_bootstrap.bench import BenchEvaluation, JudgingSettings, Series, load_floors, worst_of
from primus_bootstrap.bench.judging.criteria import compute_limits
from primus_bootstrap.bench.judging.floors import Floors
from primus_bootstrap.bench.judging.statistics import Spread
from primus_bootstrap.bench.judging.verdicts import evaluate_results
from primus_bootstrap.bench.results.history import History
from primus_bootstrap.core.verdicts import OUTCOMES, Verdict
from tests.unit.bench_fleet_rig import SERIES, STACK, Devices, result

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from primus_bootstrap.bench.results.reader import Result

START = 1_795_348_800.0


def _samples(speed: float, *, seed: object = 0, noise: float = 0.002, repeats: int = 20) -> list[float]:
    rng = random.Random(str(seed))  # noqa: S311 - made-up values
    return [speed * (1 + rng.gauss(0, noise)) for _ in range(repeats)]


def _fleet(host_speeds: Sequence[float], **other: Any) -> list[Result]:
    noise = other.pop("noise", 0.002)
    return [result(f"node{number}", _samples(speed, seed=number, noise=noise), **other) for number, speed in enumerate(host_speeds)]


def _evaluate(results: Iterable[Result], **other: Any) -> BenchEvaluation:
    return evaluate_results(results, **{"floors": Floors(), "history": History(), **other})


def _one(evaluation: BenchEvaluation, host: str) -> Verdict:
    (verdict,) = [each for each in evaluation.verdicts if each.host == host]
    return verdict


def test_a_slow_host_fails_by_its_peers_and_nobody_else_does() -> None:
    """5 % slower than eight others: the record says what was expected, found, why, and of whom."""
    evaluation = _evaluate(_fleet([700.0] * 8 + [665.0]))

    assert evaluation.hosts == {f"node{number}": "pass" for number in range(8)} | {"node8": "fail"}
    slow, good = _one(evaluation, "node8"), _one(evaluation, "node0")
    assert (slow.check, slow.unit, slow.source) == ("bench_gemm", "TFLOP/s", "peers: 8 hosts of Test GPU")
    assert slow.reason.startswith("5.")
    assert "% slower than its peers; healthy is up to 1.0 %" in slow.reason
    assert slow.expected.startswith("tflop_per_s dtype=bf16 k=8192 m=8192 n=8192: at least 69")
    assert float(slow.found) == pytest.approx(665, rel=0.005)
    assert slow.fix
    assert (good.reason, good.fix) == ("", "")


@pytest.mark.parametrize("series", [1, 4])
def test_of_six_uneven_hosts_the_one_at_a_quarter_fails(series: int) -> None:
    """Hosts that share their processors differ by a third of their speed (TFLOP/s, as measured); one at a quarter of it still fails."""
    host_speeds = [0.126, 0.111, 0.034, 0.138, 0.129, 0.159]
    shapes = [SERIES._replace(ranks=number + 1) for number in range(series)]
    results = [one for shape in shapes for one in _fleet(host_speeds, series=shape, noise=0.02)]
    evaluation = _evaluate(results)

    assert evaluation.hosts["node2"] == "fail"
    assert "fail" not in {evaluation.hosts[f"node{number}"] for number in (0, 1, 3, 4, 5)}


def test_among_few_a_host_that_fails_is_no_yardstick_for_the_others() -> None:
    """One of six at half the speed fails, and the five that are alike pass: the slow one does not widen their limit."""
    evaluation = _evaluate(_fleet([700.0, 701.0, 350.0, 699.0, 700.5, 700.2]))

    assert evaluation.hosts == {f"node{number}": "fail" if number == 2 else "pass" for number in range(6)}
    assert evaluation.reruns == ()


def test_where_lower_is_better_the_host_that_takes_longer_fails() -> None:
    """A latency that is 5 % higher; the limit is an upper one."""
    series = Series("launch_overhead", "time_us", "{}", 1)

    evaluation = _evaluate(_fleet([5.0] * 8 + [5.25, 4.9], series=series, better="lower", unit="us"))

    assert evaluation.hosts["node8"] == "fail"
    assert evaluation.hosts["node9"] == "pass"
    assert "at most 5.0" in _one(evaluation, "node8").expected


def test_a_share_in_percent_may_be_zero_or_below() -> None:
    """Overlap near 0 % on all but one host, which does worse than none; the limit is said in percent."""
    series = Series("overlap", "overlap_percent", "{}", 8)
    fleet = [result(f"node{number}", [1.0, -1.0, 0.0, 2.0, -2.0] * 4, series=series, unit="%") for number in range(8)]
    worse = result("node8", [-30.0, -31.0, -29.0, -32.0, -28.0] * 4, series=series, unit="%")

    evaluation = _evaluate([*fleet, worse])

    assert {host for host, outcome in evaluation.hosts.items() if outcome != "pass"} == {"node8"}
    assert _one(evaluation, "node8").reason.startswith("15.0 % slower than its peers")
    assert _one(evaluation, "node8").expected == "overlap_percent 8 ranks: at least -2"


def test_a_slowdown_below_the_noise_floor_is_unknown_and_measured_again() -> None:
    """3 % slower where the error of a median is above 1 %: neither good nor bad, and more repeats are asked for; with them it fails."""
    fleet = _fleet([700.0] * 39 + [675.0], noise=0.05)

    first = _evaluate(fleet)
    (wish,) = [again for again in first.reruns if again.host == "node39"]
    more = result("node39", _samples(675.0, seed="more", noise=0.05, repeats=200), started=START + 60)
    last = _evaluate([*fleet, more], rounds_done=1)

    assert first.hosts["node39"] == "unknown"
    assert Counter(first.hosts.values())["pass"] >= 20
    assert "too close to the limit" in _one(first, "node39").reason
    assert (wish.benchmark, wish.round) == ("gemm", 1)
    assert 20 <= wish.repeats <= 200
    assert last.hosts["node39"] == "fail"
    assert _one(last, "node39").seconds == 2.0


def test_the_limit_is_never_below_twice_the_usual_error() -> None:
    """Peers that differ only by how they were measured: what is within twice the error of a median is not held against a host."""
    found = compute_limits(Spread(0.0, 0.01, 200), 0.01, 0.001, JudgingSettings())

    assert (found.natural_spread, found.limit, found.ideal) == (0.0, 0.02, 0.02)


def test_measuring_again_ends() -> None:
    """After the last round nothing is asked for, and what is not known stays unknown."""
    fleet = _fleet([700.0] * 39 + [675.0], noise=0.05)

    evaluation = _evaluate(fleet, rounds_done=JudgingSettings().max_rounds)

    assert evaluation.reruns == ()
    assert evaluation.hosts["node39"] == "unknown"


def test_among_few_peers_all_are_measured_again() -> None:
    """The doubt about one of eight is the noise of the other seven."""
    evaluation = _evaluate(_fleet([700.0] * 7 + [680.0], noise=0.05))

    assert {again.host for again in evaluation.reruns} == {f"node{number}" for number in range(8)}
    assert all(again.repeats == 60 for again in evaluation.reruns if again.host != "node7")


def test_what_scatters_too_much_to_see_a_slowdown_does_not_pass() -> None:
    """Twelve healthy hosts whose values are 30 % apart: a slowdown of 10 % would not be seen, and that is said."""
    rng = random.Random(3)  # noqa: S311 - made-up values
    evaluation = _evaluate(_fleet([700.0 * (1 + rng.gauss(0, 0.3)) for _ in range(12)]))

    assert set(evaluation.hosts.values()) == {"unknown"}
    assert "could not be detected" in _one(evaluation, "node0").reason


@pytest.mark.parametrize("floors", [load_floors(), Floors()], ids=["floor", "no floor"])
def test_devices_that_differ_by_nature_keep_no_new_cluster_out(floors: Floors) -> None:
    """8 hosts of 8 GPUs in 20 series, 2 % apart and measured to 0.2 %: peers cannot judge and say so; a floor decides."""
    fleet = Devices(random.Random(1), 8, devices=8, series=20, bad=0, slowdown=0.0, noise=0.002, apart=0.02)  # noqa: S311 - a fleet
    evaluation = fleet.bench(JudgingSettings(), floors)
    blind = [verdict for verdict in evaluation.verdicts if "could not be detected" in verdict.reason]

    assert {verdict.host for verdict in blind} == set(fleet.names)
    if floors.models:
        # One of 1,280 values may lie near the edge by chance.
        assert Counter(evaluation.hosts.values())["pass"] >= 7
        assert {verdict.verdict for verdict in blind} == {"pass"}
        assert all(verdict.reason.startswith("without its peers: its peers differ too much") for verdict in blind)
        assert all(verdict.source.startswith("floor: ") and not verdict.fix for verdict in blind)
    else:
        assert {evaluation.codes[verdict] for verdict in blind} == {"no_yardstick"}
    assert evaluation.reruns == ()


def test_a_device_that_is_slow_among_unlike_ones_does_not_pass() -> None:
    """12 % slower than GPUs that differ by 2.5 % is no pass by a floor far below; 25 % is a fail. The other hosts pass."""
    fleets = [
        Devices(random.Random(2), 8, devices=8, series=4, bad=1, slowdown=slowdown, noise=0.002, apart=0.025)  # noqa: S311 - a fleet
        for slowdown in (0.12, 0.25)
    ]
    near, clear = (fleet.bench(JudgingSettings(), load_floors()) for fleet in fleets)
    (bad,) = fleets[0].bad

    assert near.hosts[bad] in ("fail", "unknown")
    assert clear.hosts[bad] == "fail"
    assert {outcome for host, outcome in clear.hosts.items() if host != bad} == {"pass"}


def test_what_is_measured_too_roughly_is_unknown_and_not_left_to_the_floor() -> None:
    """The doubt comes of how the host was measured: unknown, and measured again, however far above the floor it lies."""
    evaluation = _evaluate(_fleet([700.0] * 8, noise=0.3, model="AMD Instinct MI300X"), floors=load_floors())

    assert "pass" not in evaluation.hosts.values()
    assert {evaluation.codes[verdict] for verdict in evaluation.verdicts} == {"noise"}
    assert "the measurement is too noisy" in _one(evaluation, "node0").reason
    assert len(evaluation.reruns) == 8


def test_too_few_repeats_are_unknown_and_asked_for() -> None:
    """Four samples are less than the stated minimum, however good they look; a clear failure stays one."""
    fleet = _fleet([700.0] * 40)
    few, broken = result("node40", [700.0] * 4), result("node41", [300.0] * 4)

    evaluation = _evaluate([*fleet, few, broken])

    assert _one(evaluation, "node40").reason == "4 repeats, at least 5 are needed"
    assert evaluation.hosts["node40"] == "unknown"
    assert evaluation.hosts["node41"] == "fail"
    assert [(again.host, again.repeats) for again in evaluation.reruns] == [("node40", 5)]


def test_too_few_hosts_and_no_floor_is_unknown_with_every_reason() -> None:
    """Four hosts of a model without a floor and without a past: nothing to compare with."""
    evaluation = _evaluate(_fleet([700.0] * 3 + [300.0]))

    assert set(evaluation.hosts.values()) == {"unknown"}
    assert _one(evaluation, "node0").reason == (
        "nothing to compare with: no floor for Test GPU and these sizes; 4 hosts of Test GPU with these versions, "
        "5 are needed to compare peers; fewer than 3 earlier passes with these versions"
    )
    assert evaluation.reruns == ()


@pytest.mark.parametrize("other", [{"model": "Other GPU"}, {"stack": ("2.13.0", "", "7.0", "6.15.0")}])
def test_another_model_or_driver_is_no_peer(other: dict[str, Any]) -> None:
    """Hosts of another kind that are twice as slow are not held against the many, nor the many against them."""
    evaluation = _evaluate([*_fleet([700.0] * 8), result("nodeX", _samples(350.0), **other)])

    assert evaluation.hosts == {f"node{number}": "pass" for number in range(8)} | {"nodeX": "unknown"}


def test_devices_of_one_host_are_not_each_others_peers() -> None:
    """All eight GPUs of a host are slow: the other hosts' GPUs say so, and its own do not outvote them."""
    results = [
        result(f"node{host}", _samples(650.0 if host == 5 else 700.0, seed=(host, device)), device=str(device))
        for host in range(6)
        for device in range(8)
    ]

    evaluation = _evaluate(results)

    assert Counter(verdict.verdict for verdict in evaluation.verdicts if verdict.host == "node5") == {"fail": 8}
    assert {host for host, outcome in evaluation.hosts.items() if outcome == "fail"} == {"node5"}


@pytest.mark.parametrize("count", [6, 9, 60])
def test_a_majority_of_slow_hosts_does_not_make_the_good_ones_fail(count: int) -> None:
    """Two thirds are 20 % slower, a third is healthy: nobody fails and nobody passes, because which is which is not known."""
    slow = 2 * count // 3

    evaluation = _evaluate(_fleet([560.0] * slow + [700.0] * (count - slow)))

    assert set(evaluation.hosts.values()) == {"unknown"}


def test_two_of_twenty_five_that_are_slow_fail_together() -> None:
    """Several bad hosts at once are found, and do not hide each other."""
    evaluation = _evaluate(_fleet([700.0] * 23 + [650.0, 640.0]))

    assert {host for host, outcome in evaluation.hosts.items() if outcome == "fail"} == {"node23", "node24"}


def test_a_floor_judges_a_single_host() -> None:
    """One host of a known model passes above the floor and fails below it; the source is the vendor's page."""
    above, below = (
        _evaluate([result("node1", _samples(speed), model="AMD Instinct MI300X")], floors=load_floors()) for speed in (600.0, 400.0)
    )

    assert above.hosts == {"node1": "pass"}
    assert above.values[0].floor == pytest.approx(522.96)
    failed = _one(below, "node1")
    assert failed.verdict == "fail"
    assert failed.source.startswith("floor: 40 % of the 1307.4 that MI300X has at most (https://www.amd.com/")
    assert failed.expected.endswith("at least 522.96")


def test_just_below_the_floor_within_the_noise_is_unknown() -> None:
    """Half a percent below with an error of more than that: measured again, not convicted."""
    samples = [520.0 + 40.0 * (number - 10) / 10 for number in range(21)]

    evaluation = _evaluate([result("node1", samples, model="AMD Instinct MI300X")], floors=load_floors())

    assert evaluation.hosts == {"node1": "unknown"}
    assert _one(evaluation, "node1").reason.endswith("within the noise")
    assert [again.host for again in evaluation.reruns] == ["node1"]


def test_most_hosts_below_the_floor_convict_nobody() -> None:
    """Six of six are at a third of the floor: what they share is at fault, or the floor; one of seven would be convicted."""
    floors = load_floors()

    everybody = _evaluate(_fleet([170.0] * 6, model="AMD Instinct MI300X"), floors=floors)
    one = _evaluate(_fleet([600.0] * 6 + [170.0], model="AMD Instinct MI300X"), floors=floors)

    assert set(everybody.hosts.values()) == {"unknown"}
    assert "6 of 6 hosts are below the floor" in _one(everybody, "node0").reason
    assert everybody.reruns == ()
    assert one.hosts["node6"] == "fail"


def test_a_value_above_the_published_peak_is_not_believed() -> None:
    """A tool that says twice the peak does not pass."""
    evaluation = _evaluate([result("node1", _samples(2600.0), model="AMD Instinct MI300X")], floors=load_floors())

    assert evaluation.hosts == {"node1": "unknown"}
    assert _one(evaluation, "node1").reason.startswith("above the published peak of 1307.4")


def test_a_wrong_result_fails_however_fast_and_whatever_comes_after() -> None:
    """Silent corruption is not made good by a second run that is right; a loss that does not fall is one too."""
    fleet = _fleet([700.0] * 8)
    wrong = result("node0", _samples(720.0), correct=False, started=START - 60)
    trial = result("node1", (), series=Series("trial", "tokens_per_s", "{}", 8), value=None, correct=False)

    evaluation = _evaluate([*fleet, wrong, trial])

    assert (evaluation.hosts["node0"], evaluation.hosts["node1"]) == ("fail", "fail")
    assert [verdict.reason for verdict in evaluation.verdicts if verdict.verdict == "fail"] == [
        "the result is wrong",
        "the loss does not fall, or is not a number",
    ]


def test_an_error_is_unknown_until_a_later_run_makes_it_good() -> None:
    """No value is neither good nor bad, and is measured again; an error after a good run counts as well."""
    fleet = _fleet([700.0] * 8)
    failed = result("node8", (), error="out of memory", correct=None)
    good_run = result("node8", _samples(700.0, seed=8), started=START + 60)
    failed_later = result("node0", (), error="time-out", correct=None, started=START + 60)

    first, second, third = _evaluate([*fleet, failed]), _evaluate([*fleet, failed, good_run]), _evaluate([*fleet, failed_later])

    assert _one(first, "node8").reason == "out of memory"
    assert first.hosts["node8"] == "unknown"
    assert [again.host for again in first.reruns] == ["node8"]
    assert second.hosts["node8"] == "pass"
    assert third.hosts["node0"] == "unknown"


def test_a_program_that_failed_before_its_first_series_is_made_good_by_any_later_one() -> None:
    """Its line names no series and no device; one of another host does not help it."""
    none = {"series": Series("gemm", "none", "{}", 1), "error": "no GPU", "correct": None}
    fleet = [result(f"node{host}", _samples(700.0, seed=host), device="0") for host in range(8)]

    evaluation = _evaluate([*fleet, result("node1", (), started=START - 1, **none), result("node9", (), started=START - 1, **none)])

    assert (evaluation.hosts["node1"], evaluation.hosts["node9"]) == ("pass", "unknown")


def test_a_node_that_was_lost_during_the_bench_is_unknown() -> None:
    """It was benched with the others and gave nothing; it is asked again, and is in the result."""
    evaluation = _evaluate(_fleet([700.0] * 8), hosts=[*(f"node{number}" for number in range(8)), "lost"])

    lost = _one(evaluation, "lost")
    assert (lost.verdict, lost.check) == ("unknown", "bench_gemm")
    assert lost.reason.startswith("no result of the host")
    assert ("lost", "gemm") in {(again.host, again.benchmark) for again in evaluation.reruns}


def test_a_device_that_is_missing_on_one_host_is_unknown() -> None:
    """Seven of eight GPUs gave results: the host does not pass, and the record names the device."""
    results = [
        result(f"node{host}", _samples(700.0, seed=(host, device)), device=str(device))
        for host in range(8)
        for device in range(8)
        if (host, device) != (3, 6)
    ]

    evaluation = _evaluate(results)

    (missing,) = [verdict for verdict in evaluation.verdicts if verdict.verdict != "pass"]
    assert (missing.host, missing.device, missing.verdict) == ("node3", "6", "unknown")
    assert evaluation.hosts["node3"] == "unknown"


def test_a_benchmark_that_only_one_host_ran_is_missed_by_nobody() -> None:
    """A group's result stands under one host; the others are not lost."""
    group = result("node0", _samples(300.0), series=Series("collectives", "bus_gb_per_s", "{}", 64))

    evaluation = _evaluate([*_fleet([700.0] * 8), group], hosts=[f"node{number}" for number in range(8)])

    assert {host for host, outcome in evaluation.hosts.items() if outcome == "pass"} == {f"node{number}" for number in range(1, 8)}


def test_a_result_of_several_hosts_together_is_nobodys_alone() -> None:
    """A pair gets its verdict, and neither host is charged with it."""
    evaluation = _evaluate([*_fleet([700.0] * 8), result("node0,node1", _samples(100.0), correct=False)])

    assert _one(evaluation, "node0,node1").verdict == "fail"
    assert set(evaluation.hosts) == {f"node{number}" for number in range(8)}
    assert set(evaluation.hosts.values()) == {"pass"}


def test_verdicts_made_elsewhere_count_for_the_host() -> None:
    """A line that could not be read and a failed node check; a skipped one changes nothing."""
    others = [
        Verdict(check="bench_results", host="node0", verdict="unknown"),
        Verdict(check="preflight_ecc", host="node1", verdict="fail"),
        Verdict(check="preflight_xgmi", host="node2", verdict="skipped"),
        Verdict(check="preflight_xgmi", host="node9", verdict="skipped"),
    ]

    evaluation = _evaluate(_fleet([700.0] * 8), others=others)

    assert [evaluation.hosts[f"node{number}"] for number in (0, 1, 2, 3, 9)] == ["unknown", "fail", "pass", "pass", "skipped"]
    assert set(others) <= set(evaluation.verdicts)


def test_a_line_that_was_fetched_twice_counts_once() -> None:
    """The same file read twice does not make forty repeats of twenty."""
    fleet = _fleet([700.0] * 8)

    once, twice = _evaluate(fleet), _evaluate([*fleet, *fleet])

    assert once == twice
    assert {value.repeats for value in twice.values} == {20}


@pytest.mark.parametrize(("found", "expected"), [(["pass", "fail", "unknown"], "fail"), (["pass", "unknown", "skipped"], "unknown"),
                                                 (["pass", "skipped"], "pass"), (["skipped"], "skipped"), ([], "unknown")])  # fmt: skip
def test_the_worst_verdict_is_the_hosts(found: list[Any], expected: str) -> None:
    """Fail, else unknown, else pass; a host of which nothing was said is unknown."""
    assert worst_of(found) == expected


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 20), st.integers(0, 3))
def test_the_order_of_results_does_not_matter(rng: random.Random, hosts: int, bad: int) -> None:
    """Shuffled lines give the same verdicts, and every host one of the four words."""
    results = _fleet([700.0] * (hosts - bad) + [640.0] * bad)
    shuffled = results[:]
    rng.shuffle(shuffled)

    one, other = _evaluate(results), _evaluate(shuffled)

    assert sorted(one.verdicts, key=lambda each: each.host) == sorted(other.verdicts, key=lambda each: each.host)
    assert one.hosts == other.hosts
    assert set(one.hosts.values()) <= set(OUTCOMES)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 3.0), st.integers(6, 30))
def test_only_ratios_matter(factor: float, hosts: int) -> None:
    """In another unit, or on a faster model, the same hosts fail."""
    host_speeds = [700.0 * (1 - 0.004 * (number % 3)) for number in range(hosts - 1)] + [600.0]

    one, other = _evaluate(_fleet(host_speeds)), _evaluate(_fleet([speed * factor for speed in host_speeds]))

    assert one.hosts == other.hosts


def test_the_rig_measures_what_judging_groups_by() -> None:
    """A guard of the tests above: made-up results are of one series and one set of versions."""
    assert {(each.series, each.stack) for each in _fleet([700.0] * 3)} == {(SERIES, STACK)}
