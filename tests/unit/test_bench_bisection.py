"""The bisection finds and proves bad hosts with few runs, and never fails a healthy host."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_bootstrap.bench.fabric.bisection import bisect_fabric
from primus_bootstrap.bench.fabric.fabric_verdicts import bisection_verdicts, pair_verdicts
from primus_bootstrap.bench.fabric.pair_rounds import round_robin
from primus_bootstrap.bench.fabric.session import add_fabric
from primus_bootstrap.bench.judging.verdicts import BenchEvaluation
from tests.unit.bench_fabric_rig import Fabric, draw_fabric, tally

if TYPE_CHECKING:
    from primus_bootstrap.bench.results.group_records import Answer

CONSTANT_RUNS = 24


def _states(fabric: Fabric, seed: int = 0) -> dict[str, str]:
    return {found.hosts[0]: found.state for found in fabric.bisect(seed).hosts}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exactly_the_bad_hosts_fail(data: st.DataObject) -> None:
    """With reliable runs, in at most 2 b log2(N) runs and a constant."""
    size = data.draw(st.integers(8, 200))
    numbers = data.draw(st.sets(st.integers(0, size - 1), max_size=size // 4))
    fabric = Fabric(size, bad=frozenset(f"gpu{number:04}" for number in numbers))
    found = fabric.bisect(data.draw(st.integers(0, 99)))

    assert {host_state.hosts[0] for host_state in found.hosts if host_state.state == "fail"} == fabric.bad
    assert all(host_state.state == "pass" for host_state in found.hosts if host_state.hosts[0] not in fabric.bad)
    assert found.runs == len(fabric.asked) <= 2 * len(numbers) * math.log2(size) + CONSTANT_RUNS


@pytest.mark.parametrize(("size", "bad"), [(4096, 1), (4096, 8), (1000, 3)])
def test_large_fabrics_take_few_runs(size: int, bad: int) -> None:
    """All bad hosts of a large fabric are found within the bound."""
    fabric = draw_fabric("large", size, bad=bad)
    found = fabric.bisect()

    assert tally(fabric, found) == {"bad fail": bad, "good pass": size - bad}
    assert found.runs <= 2 * bad * math.log2(size) + CONSTANT_RUNS


@pytest.mark.parametrize("size", [3, 4, 6, 16, 300])
@pytest.mark.parametrize("seed", range(4))
def test_the_hosts_of_a_bad_path_pass(size: int, seed: int) -> None:
    """Two hosts that fail only together pass, and the path is suspect."""
    fabric = draw_fabric(f"path {seed}", size, paths=1)
    found = fabric.bisect(seed)

    assert tally(fabric, found) == +Counter({"good pass": size - 2, "end pass": 2, "path right": 1})


@pytest.mark.parametrize("seed", range(5))
def test_a_bad_host_and_a_bad_path_are_distinguished(seed: int) -> None:
    """The host fails, the path is suspect, all other hosts pass."""
    fabric = draw_fabric(f"both {seed}", 32, bad=1, paths=1)

    assert tally(fabric, fabric.bisect(seed)) == {"bad fail": 1, "good pass": 29, "end pass": 2, "path right": 1}


@pytest.mark.parametrize("often", [0.3, 0.5, 0.8])
def test_a_flaky_host_fails_no_other_host(often: float) -> None:
    """The flaky host itself rarely passes."""
    ended: list[str] = []
    for seed in range(60):
        fabric = Fabric(24, flaky={"gpu0007": often}, rng=random.Random(f"{often} {seed}"))  # noqa: S311 - luck, no secret
        states = _states(fabric, seed)
        ended.append(states.pop("gpu0007"))

        assert "fail" not in states.values()

    assert ended.count("pass") / len(ended) < (1 - often) ** 3 + 0.15


def test_a_host_that_hangs_runs_is_unknown() -> None:
    """The other hosts pass."""
    fabric = Fabric(16, hangs=frozenset({"gpu0003"}))
    states = _states(fabric)

    assert states.pop("gpu0003") == "unknown"
    assert set(states.values()) == {"pass"}


def test_bad_partners_prove_nothing() -> None:
    """If a group of bad hosts passed by mistake, hosts that fail with them do not fail."""
    fabric = Fabric(16)

    def probe(group: tuple[str, ...]) -> Answer:
        answer = fabric.probe(group)
        if len(fabric.asked) == 1:
            return "fail"
        if len(fabric.asked) == 2:
            fabric.bad = frozenset(group)
            return "pass"
        return answer

    found = bisect_fabric(fabric.hosts, probe)

    assert len(fabric.bad) == 8
    assert {host_state.hosts[0] for host_state in found.hosts if host_state.state == "fail"} <= fabric.bad


@pytest.mark.parametrize("answer", ["fail", "unknown"])
def test_a_probe_that_never_passes_proves_nothing(answer: str) -> None:
    """Without a group that passes, all hosts are unknown, and the search ends soon."""
    found = bisect_fabric(Fabric(1024).hosts, lambda _: "fail" if answer == "fail" else "unknown")

    assert {host_state.state for host_state in found.hosts} == {"unknown"}
    assert found.runs < 120


@pytest.mark.parametrize("seed", range(20))
def test_random_answers_end_the_search(seed: int) -> None:
    """After a limited number of runs, with hardly any failure."""
    rng = random.Random(seed)  # noqa: S311 - luck, no secret
    found = bisect_fabric(Fabric(64).hosts, lambda _: rng.choice(("pass", "fail", "unknown")))

    assert sum(host_state.state == "fail" for host_state in found.hosts) <= 1
    assert found.runs < 400


@pytest.mark.parametrize(
    ("size", "largest", "bad", "runs"), [(64, 40, 0, 40), (256, 60, 0, 60), (64, 40, 3, 80), (8, 5, 1, 40), (64, 63, 0, 40)]
)
def test_large_groups_that_always_fail_make_no_host_suspect(size: int, largest: int, bad: int, runs: int) -> None:
    """The size is reported, healthy hosts pass in smaller groups, and bad ones are found with few runs."""
    fabric = draw_fabric("large groups", size, bad=bad, largest=largest)
    found = fabric.bisect()

    assert tally(fabric, found) == +Counter({"good pass": size - bad, "bad fail": bad})
    assert (found.largest, found.paths) == (largest, ())
    assert found.runs <= runs


def test_if_only_pairs_pass_the_search_ends() -> None:
    """Hosts that were not reached are unknown for that reason; the others pass."""
    states = Fabric(64, largest=2).bisect()

    assert {host_state.state for host_state in states.hosts} == {"pass", "large"}
    assert states.runs < 60


@pytest.mark.parametrize("seed", range(8))
def test_groups_near_the_size_limit_make_no_host_suspect(seed: int) -> None:
    """Larger groups fail more often; the number of runs does not grow with the hosts."""
    rng = random.Random(seed)  # noqa: S311 - luck, no secret
    found = bisect_fabric(
        Fabric(256).hosts, lambda group: "fail" if rng.random() < 1 / (1 + math.exp(60 - len(group))) else "pass", seed=seed
    )

    assert {host_state.state for host_state in found.hosts} <= {"pass", "unsteady", "large"}
    assert found.runs < 300


def test_one_or_two_hosts_are_unknown() -> None:
    """One host has no fabric; of two that fail together, neither is proved bad."""
    assert _states(Fabric(1)) == {"gpu0000": "unknown"}
    assert set(_states(Fabric(2, bad=frozenset({"gpu0001"}))).values()) == {"unknown"}


def test_the_search_is_deterministic() -> None:
    """The groups depend on hosts, answers and seed only."""
    first, again, other = (Fabric(50, bad=frozenset({"gpu0004"})) for _ in range(3))
    first.bisect(1)
    again.bisect(1)
    other.bisect(2)

    assert first.asked == again.asked != other.asked


def test_verdicts_of_a_bisection() -> None:
    """Each host has a verdict in the given order; a path has both names, the code `suspect`, and does not fail."""
    fabric = Fabric(8, bad=frozenset({"gpu0002"}), paths=frozenset({frozenset({"gpu0000", "gpu0005"})}))
    verdicts, codes = bisection_verdicts(fabric.bisect(), started=100.0, seconds=7.0)
    fail, path = verdicts[2], verdicts[-1]

    assert [verdict.host for verdict in verdicts[:-1]] == fabric.hosts
    assert [verdict.verdict for verdict in verdicts] == ["pass", "pass", "fail", *["pass"] * 5, "unknown"]
    assert (fail.check, fail.started, bool(fail.reason), bool(fail.fix)) == ("fabric_bisection", 100.0, True, True)
    assert set(path.host.split(",")) == {"gpu0000", "gpu0005"}
    assert codes == {path: "suspect"}


def test_failing_large_groups_are_one_verdict_of_the_fabric() -> None:
    """It names the size; all hosts pass."""
    fabric = bisection_verdicts(Fabric(16, largest=9).bisect(), started=1.0, seconds=2.0)
    verdicts, codes = fabric
    shared = verdicts[-1]
    hosts = add_fabric(BenchEvaluation((), {}, (), (), {}), fabric).hosts

    assert {verdict.verdict for verdict in verdicts[:-1]} == {"pass"}
    assert (shared.host, shared.verdict, shared.found, codes) == ("", "unknown", "9", {shared: "large"})
    assert "more than 9 hosts fail, whichever hosts are in them" in shared.reason
    assert hosts == dict.fromkeys(Fabric(16).hosts, "pass")


def test_a_single_host_is_skipped() -> None:
    """It has no fabric to measure."""
    verdicts, _ = bisection_verdicts(Fabric(1).bisect(), started=1.0, seconds=0.0)

    assert [verdict.verdict for verdict in verdicts] == ["skipped"]


def test_pairs_distinguish_a_bad_host_from_a_bad_path() -> None:
    """A host that fails with all others fails; two that fail only together pass, and the path is suspect."""
    hosts = Fabric(6).hosts
    pairs = [pair for round_ in round_robin(hosts) for pair in round_]
    bad, path = "gpu0001", {"gpu0002", "gpu0005"}
    verdicts, codes = pair_verdicts(
        {pair: "fail" if bad in pair or set(pair) == path else "pass" for pair in pairs}, started=1.0, seconds=2.0
    )
    outcomes = {verdict.host: verdict.verdict for verdict in verdicts}

    assert {host for host, outcome in outcomes.items() if outcome == "fail"} == {bad}
    assert {host for host, outcome in outcomes.items() if outcome == "pass"} == set(hosts) - {bad}
    assert [set(verdict.host.split(",")) for verdict in codes] == [path]


@pytest.mark.parametrize("outcomes", [("fail",), ("fail", "unknown"), ("unknown", "unknown")])
def test_too_few_pairs_prove_nothing(outcomes: tuple[str, ...]) -> None:
    """One failed partner, or missing answers, leave a host unknown."""
    good = {("a", "b"): "pass", ("b", "c"): "pass"}
    about = {("x", partner): outcome for partner, outcome in zip("abc", outcomes, strict=False)}
    verdicts, _ = pair_verdicts({**good, **about}, started=1.0, seconds=2.0)  # type: ignore[dict-item]

    assert {verdict.host: verdict.verdict for verdict in verdicts}["x"] == "unknown"
