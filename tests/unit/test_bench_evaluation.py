"""Evaluating results: which hosts fail, pass or are unknown, and what runs again."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_bootstrap.bench.judging.criteria import compute_limits
from primus_bootstrap.bench.judging.floors import Floors, load_floors
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.judging.statistics import Spread
from primus_bootstrap.bench.judging.verdicts import BenchEvaluation, evaluate_results, worst_of
from primus_bootstrap.bench.results.history import History
from primus_bootstrap.bench.results.reader import Series
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
    (verdict,) = [verdict for verdict in evaluation.verdicts if verdict.host == host]
    return verdict


def test_a_slow_host_fails_by_its_peers() -> None:
    """Of nine hosts, only the one that is 5 % slower fails; the verdict has limit, value, reason and peers."""
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
    """Hosts that share processors differ by a third of their speed (TFLOP/s, as measured); one with a quarter of it still fails."""
    host_speeds = [0.126, 0.111, 0.034, 0.138, 0.129, 0.159]
    shapes = [SERIES._replace(ranks=number + 1) for number in range(series)]
    results = [one for shape in shapes for one in _fleet(host_speeds, series=shape, noise=0.02)]
    evaluation = _evaluate(results)

    assert evaluation.hosts["node2"] == "fail"
    assert "fail" not in {evaluation.hosts[f"node{number}"] for number in (0, 1, 3, 4, 5)}


def test_among_few_hosts_a_failed_one_is_left_out_of_the_comparison() -> None:
    """One of six hosts has half the speed and fails; it does not widen the limit of the other five."""
    evaluation = _evaluate(_fleet([700.0, 701.0, 350.0, 699.0, 700.5, 700.2]))

    assert evaluation.hosts == {f"node{number}": "fail" if number == 2 else "pass" for number in range(6)}
    assert evaluation.reruns == ()


def test_where_lower_is_better_the_slower_host_fails() -> None:
    """A latency that is 5 % higher exceeds an upper limit."""
    series = Series("launch_overhead", "time_us", "{}", 1)

    evaluation = _evaluate(_fleet([5.0] * 8 + [5.25, 4.9], series=series, better="lower", unit="us"))

    assert evaluation.hosts["node8"] == "fail"
    assert evaluation.hosts["node9"] == "pass"
    assert "at most 5.0" in _one(evaluation, "node8").expected


def test_a_percentage_may_be_zero_or_negative() -> None:
    """The overlap is near 0 % on all hosts but one, which fails; the limit is a percentage."""
    series = Series("overlap", "overlap_percent", "{}", 8)
    fleet = [result(f"node{number}", [1.0, -1.0, 0.0, 2.0, -2.0] * 4, series=series, unit="%") for number in range(8)]
    worse = result("node8", [-30.0, -31.0, -29.0, -32.0, -28.0] * 4, series=series, unit="%")

    evaluation = _evaluate([*fleet, worse])

    assert {host for host, outcome in evaluation.hosts.items() if outcome != "pass"} == {"node8"}
    assert _one(evaluation, "node8").reason.startswith("15.0 % slower than its peers")
    assert _one(evaluation, "node8").expected == "overlap_percent 8 ranks: at least -2"


def test_a_slowdown_below_the_noise_floor_is_unknown_and_measured_again() -> None:
    """A slowdown of 3 % with an error above 1 % is unknown at first; with more repeats the host fails."""
    fleet = _fleet([700.0] * 39 + [675.0], noise=0.05)

    first = _evaluate(fleet)
    (wish,) = [again for again in first.reruns if again.host == "node39"]
    more = result("node39", _samples(675.0, seed="more", noise=0.05, repeats=200), started=START + 60)
    last = _evaluate([*fleet, more], rounds_done=1)

    assert first.hosts["node39"] == "unknown"
    assert Counter(first.hosts.values())["pass"] >= 20
    assert "too close to the limit" in _one(first, "node39").reason
    assert wish.benchmark == "gemm"
    assert 20 <= wish.repeats <= 200
    assert last.hosts["node39"] == "fail"
    assert _one(last, "node39").seconds == 2.0


def test_the_limit_is_never_below_twice_the_usual_error() -> None:
    """Peers that differ only by the measuring error have a limit of twice the error of a median."""
    found = compute_limits(Spread(0.0, 0.01, 200), 0.01, 0.001, JudgingSettings())

    assert (found.natural_spread, found.limit, found.ideal) == (0.0, 0.02, 0.02)


def test_reruns_end_after_the_last_round() -> None:
    """An undecided host stays unknown."""
    fleet = _fleet([700.0] * 39 + [675.0], noise=0.05)

    evaluation = _evaluate(fleet, rounds_done=JudgingSettings().max_rounds)

    assert evaluation.reruns == ()
    assert evaluation.hosts["node39"] == "unknown"


def test_among_few_peers_all_run_again() -> None:
    """The uncertainty about one of eight hosts is the noise of the other seven."""
    evaluation = _evaluate(_fleet([700.0] * 7 + [680.0], noise=0.05))

    assert {again.host for again in evaluation.reruns} == {f"node{number}" for number in range(8)}
    assert all(again.repeats == 60 for again in evaluation.reruns if again.host != "node7")


def test_peers_that_differ_too_much_do_not_pass() -> None:
    """Twelve healthy hosts differ by 30 %, so a slowdown of 10 % could not be detected."""
    rng = random.Random(3)  # noqa: S311 - made-up values
    evaluation = _evaluate(_fleet([700.0 * (1 + rng.gauss(0, 0.3)) for _ in range(12)]))

    assert set(evaluation.hosts.values()) == {"unknown"}
    assert "could not be detected" in _one(evaluation, "node0").reason


@pytest.mark.parametrize("floors", [load_floors(), Floors()], ids=["floor", "no floor"])
def test_devices_that_differ_by_nature_pass_by_their_floor(floors: Floors) -> None:
    """64 GPUs in 20 series differ by 2 % and are measured to 0.2 %: peers are not compared, and a floor decides."""
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
        assert {evaluation.codes[verdict] for verdict in blind} == {"no_reference"}
    assert evaluation.reruns == ()


def test_a_slow_device_among_uneven_ones_does_not_pass() -> None:
    """GPUs differ by 2.5 %: one that is 12 % slower does not pass by its floor, 25 % is a failure, and the others pass."""
    fleets = [
        Devices(random.Random(2), 8, devices=8, series=4, bad=1, slowdown=slowdown, noise=0.002, apart=0.025)  # noqa: S311 - a fleet
        for slowdown in (0.12, 0.25)
    ]
    near, clear = (fleet.bench(JudgingSettings(), load_floors()) for fleet in fleets)
    (bad,) = fleets[0].bad

    assert near.hosts[bad] in ("fail", "unknown")
    assert clear.hosts[bad] == "fail"
    assert {outcome for host, outcome in clear.hosts.items() if host != bad} == {"pass"}


def test_a_noisy_measurement_is_unknown_even_above_the_floor() -> None:
    """More repeats may help, so it runs again."""
    evaluation = _evaluate(_fleet([700.0] * 8, noise=0.3, model="AMD Instinct MI300X"), floors=load_floors())

    assert "pass" not in evaluation.hosts.values()
    assert {evaluation.codes[verdict] for verdict in evaluation.verdicts} == {"noise"}
    assert "the measurement is too noisy" in _one(evaluation, "node0").reason
    assert len(evaluation.reruns) == 8


def test_too_few_repeats_are_unknown_and_run_again() -> None:
    """Four samples are below the minimum; a clear failure is still a failure."""
    fleet = _fleet([700.0] * 40)
    few, broken = result("node40", [700.0] * 4), result("node41", [300.0] * 4)

    evaluation = _evaluate([*fleet, few, broken])

    assert _one(evaluation, "node40").reason == "4 repeats, at least 5 are needed"
    assert evaluation.hosts["node40"] == "unknown"
    assert evaluation.hosts["node41"] == "fail"
    assert [(again.host, again.repeats) for again in evaluation.reruns] == [("node40", 5)]


def test_without_any_comparison_the_reason_names_all_criteria() -> None:
    """Four hosts of a model without floor and history are unknown."""
    evaluation = _evaluate(_fleet([700.0] * 3 + [300.0]))

    assert set(evaluation.hosts.values()) == {"unknown"}
    assert _one(evaluation, "node0").reason == (
        "nothing to compare with: no floor for Test GPU and these sizes; 4 hosts of Test GPU with these versions, "
        "5 are needed to compare peers; fewer than 3 earlier passes with these versions"
    )
    assert evaluation.reruns == ()


@pytest.mark.parametrize("other", [{"model": "Other GPU"}, {"stack": ("2.13.0", "", "7.0", "6.15.0")}])
def test_another_model_or_driver_is_no_peer(other: dict[str, Any]) -> None:
    """A host of another kind with half the speed is not compared with the others."""
    evaluation = _evaluate([*_fleet([700.0] * 8), result("nodeX", _samples(350.0), **other)])

    assert evaluation.hosts == {f"node{number}": "pass" for number in range(8)} | {"nodeX": "unknown"}


def test_devices_of_one_host_are_not_each_others_peers() -> None:
    """All eight GPUs of a host are slow; compared with other hosts, they fail."""
    results = [
        result(f"node{host}", _samples(650.0 if host == 5 else 700.0, seed=(host, device)), device=str(device))
        for host in range(6)
        for device in range(8)
    ]

    evaluation = _evaluate(results)

    assert Counter(verdict.verdict for verdict in evaluation.verdicts if verdict.host == "node5") == {"fail": 8}
    assert {host for host, outcome in evaluation.hosts.items() if outcome == "fail"} == {"node5"}


@pytest.mark.parametrize("count", [6, 9, 60])
def test_with_many_slow_hosts_all_are_unknown(count: int) -> None:
    """Two thirds of the hosts are 20 % slower, so it is unknown which ones are healthy."""
    slow = 2 * count // 3

    evaluation = _evaluate(_fleet([560.0] * slow + [700.0] * (count - slow)))

    assert set(evaluation.hosts.values()) == {"unknown"}


def test_two_slow_hosts_do_not_hide_each_other() -> None:
    """Both of 25 hosts fail."""
    evaluation = _evaluate(_fleet([700.0] * 23 + [650.0, 640.0]))

    assert {host for host, outcome in evaluation.hosts.items() if outcome == "fail"} == {"node23", "node24"}


def test_a_floor_is_enough_for_a_single_host() -> None:
    """It passes above the floor and fails below; the source is the vendor's page."""
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
    """Half a percent below with a larger error is unknown, and runs again."""
    samples = [520.0 + 40.0 * (number - 10) / 10 for number in range(21)]

    evaluation = _evaluate([result("node1", samples, model="AMD Instinct MI300X")], floors=load_floors())

    assert evaluation.hosts == {"node1": "unknown"}
    assert _one(evaluation, "node1").reason.endswith("within the noise")
    assert [again.host for again in evaluation.reruns] == ["node1"]


def test_most_hosts_below_the_floor_are_unknown() -> None:
    """All six hosts are far below, so the cause is shared or the floor is wrong; one of seven fails."""
    floors = load_floors()

    all_slow = _evaluate(_fleet([170.0] * 6, model="AMD Instinct MI300X"), floors=floors)
    one = _evaluate(_fleet([600.0] * 6 + [170.0], model="AMD Instinct MI300X"), floors=floors)

    assert set(all_slow.hosts.values()) == {"unknown"}
    assert "6 of 6 hosts are below the floor" in _one(all_slow, "node0").reason
    assert all_slow.reruns == ()
    assert one.hosts["node6"] == "fail"


def test_a_value_above_the_published_peak_is_unknown() -> None:
    """Twice the peak is a wrong measurement."""
    evaluation = _evaluate([result("node1", _samples(2600.0), model="AMD Instinct MI300X")], floors=load_floors())

    assert evaluation.hosts == {"node1": "unknown"}
    assert _one(evaluation, "node1").reason.startswith("above the published peak of 1307.4")


def test_a_wrong_result_always_fails() -> None:
    """A later correct run does not remove the failure; a loss that does not fall is a wrong result too."""
    fleet = _fleet([700.0] * 8)
    wrong = result("node0", _samples(720.0), correct=False, started=START - 60)
    trial = result("node1", (), series=Series("trial", "tokens_per_s", "{}", 8), value=None, correct=False)

    evaluation = _evaluate([*fleet, wrong, trial])

    assert (evaluation.hosts["node0"], evaluation.hosts["node1"]) == ("fail", "fail")
    assert [verdict.reason for verdict in evaluation.verdicts if verdict.verdict == "fail"] == [
        "the result is wrong",
        "the loss does not fall, or is not a number",
    ]


def test_an_error_is_unknown_until_a_later_run_succeeds() -> None:
    """It runs again; an error after a successful run counts as well."""
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


def test_an_error_before_the_first_series_is_resolved_by_any_later_series() -> None:
    """Its line names no series and no device; a series of another host does not resolve it."""
    none = {"series": Series("gemm", "none", "{}", 1), "error": "no GPU", "correct": None}
    fleet = [result(f"node{host}", _samples(700.0, seed=host), device="0") for host in range(8)]

    evaluation = _evaluate([*fleet, result("node1", (), started=START - 1, **none), result("node9", (), started=START - 1, **none)])

    assert (evaluation.hosts["node1"], evaluation.hosts["node9"]) == ("pass", "unknown")


def test_a_host_that_was_lost_during_the_bench_is_unknown() -> None:
    """It was benched with the others and gave no result, so it runs again."""
    evaluation = _evaluate(_fleet([700.0] * 8), hosts=[*(f"node{number}" for number in range(8)), "lost"])

    lost = _one(evaluation, "lost")
    assert (lost.verdict, lost.check) == ("unknown", "bench_gemm")
    assert lost.reason.startswith("no result of the host")
    assert ("lost", "gemm") in {(again.host, again.benchmark) for again in evaluation.reruns}


def test_a_device_that_is_missing_on_one_host_is_unknown() -> None:
    """Seven of eight GPUs gave results; the verdict names the missing one."""
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


def test_a_benchmark_of_a_single_host_is_not_missing_elsewhere() -> None:
    """The result of a group belongs to one host; the others are not lost."""
    group = result("node0", _samples(300.0), series=Series("collectives", "bus_gb_per_s", "{}", 64))

    evaluation = _evaluate([*_fleet([700.0] * 8), group], hosts=[f"node{number}" for number in range(8)])

    assert {host for host, outcome in evaluation.hosts.items() if outcome == "pass"} == {f"node{number}" for number in range(1, 8)}


def test_a_result_of_a_pair_counts_for_neither_host() -> None:
    """The pair gets a verdict of its own."""
    evaluation = _evaluate([*_fleet([700.0] * 8), result("node0,node1", _samples(100.0), correct=False)])

    assert _one(evaluation, "node0,node1").verdict == "fail"
    assert set(evaluation.hosts) == {f"node{number}" for number in range(8)}
    assert set(evaluation.hosts.values()) == {"pass"}


def test_other_verdicts_count_for_the_host() -> None:
    """An invalid line and a failed node check count; a skipped check changes nothing."""
    others = [
        Verdict(check="bench_results", host="node0", verdict="unknown"),
        Verdict(check="preflight_ecc", host="node1", verdict="fail"),
        Verdict(check="preflight_xgmi", host="node2", verdict="skipped"),
        Verdict(check="preflight_xgmi", host="node9", verdict="skipped"),
    ]

    evaluation = _evaluate(_fleet([700.0] * 8), others=others)

    assert [evaluation.hosts[f"node{number}"] for number in (0, 1, 2, 3, 9)] == ["unknown", "fail", "pass", "pass", "skipped"]
    assert set(others) <= set(evaluation.verdicts)


def test_a_duplicate_line_counts_once() -> None:
    """A file that is read twice does not double the repeats."""
    fleet = _fleet([700.0] * 8)

    once, twice = _evaluate(fleet), _evaluate([*fleet, *fleet])

    assert once == twice
    assert {value.sample.repeats for value in twice.values} == {20}


@pytest.mark.parametrize(("found", "expected"), [(["pass", "fail", "unknown"], "fail"), (["pass", "unknown", "skipped"], "unknown"),
                                                 (["pass", "skipped"], "pass"), (["skipped"], "skipped"), ([], "unknown")])  # fmt: skip
def test_the_worst_verdict_is_that_of_the_host(found: list[Any], expected: str) -> None:
    """Fail comes before unknown and pass; without a verdict the host is unknown."""
    assert worst_of(found) == expected


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(5, 20), st.integers(0, 3))
def test_the_order_of_results_does_not_matter(rng: random.Random, hosts: int, bad: int) -> None:
    """Shuffled lines give the same verdicts."""
    results = _fleet([700.0] * (hosts - bad) + [640.0] * bad)
    shuffled = results[:]
    rng.shuffle(shuffled)

    one, other = _evaluate(results), _evaluate(shuffled)

    assert sorted(one.verdicts, key=lambda verdict: verdict.host) == sorted(other.verdicts, key=lambda verdict: verdict.host)
    assert one.hosts == other.hosts
    assert set(one.hosts.values()) <= set(OUTCOMES)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 3.0), st.integers(6, 30))
def test_only_ratios_matter(factor: float, hosts: int) -> None:
    """In another unit, the same hosts fail."""
    host_speeds = [700.0 * (1 - 0.004 * (number % 3)) for number in range(hosts - 1)] + [600.0]

    one, other = _evaluate(_fleet(host_speeds)), _evaluate(_fleet([speed * factor for speed in host_speeds]))

    assert one.hosts == other.hosts


def test_made_up_results_are_of_one_group() -> None:
    """They have one series and one set of versions."""
    assert {(found.series, found.stack) for found in _fleet([700.0] * 3)} == {(SERIES, STACK)}
