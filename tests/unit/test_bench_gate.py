"""Who is quarantined, released, held and left alone: only with proof, only our own, and never too many at once."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_bootstrap.bench.quarantine.decisions import (
    OWNER,
    PENDING,
    Breaker,
    Decision,
    GateResult,
    HostState,
    QuarantineRecord,
    parse_breaker,
)
from primus_bootstrap.bench.quarantine.gate import decide, max_quarantined
from primus_bootstrap.bench.quarantine.policy import load_policy
from primus_bootstrap.core.verdicts import OUTCOMES, Outcome, Verdict, parse_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.bench.judging.reason_codes import Code

POLICY = load_policy()
TIER = POLICY.tiers["quick"]
PASS: Outcome = "pass"
CHECKS = ("preflight_gpu_ecc", "preflight_swap", "bench_gemm", "bench_memory_bandwidth")
BENCHED, NOW = 1000.0, 1100.0
OURS = QuarantineRecord(OWNER, "bench: bench_gemm failed", 500.0, own_clock=True)
JOINING = QuarantineRecord(OWNER, PENDING, 500.0, own_clock=True)
ADA = QuarantineRecord("ada", "fan broken", 500.0)


def _bench(host: str, outcomes: Mapping[str, Outcome] = MappingProxyType({}), started: float = BENCHED) -> list[Verdict]:
    """Return verdicts of the quick tier: a pass each, but for those that are given."""
    said: dict[str, Outcome] = {**dict.fromkeys(CHECKS, PASS), **outcomes}
    return [Verdict(check, host, word, reason="because", started=started) for check, word in said.items()]


def _gate(
    states: list[HostState], verdicts: list[Verdict], *, breaker: Breaker | None = None, codes: dict[Verdict, Code] | None = None
) -> GateResult:
    return decide(states, verdicts, policy=POLICY, tier=TIER, gpu_nodes=max(10, len(states)), now=NOW, codes=codes or {}, breaker=breaker)


def _one(
    standing: tuple[QuarantineRecord, ...], verdicts: list[Verdict], codes: dict[Verdict, Code] | None = None, *, known: bool = True
) -> Decision:
    return _gate([HostState("gpu1", standing, known)], verdicts, codes=codes).decisions[0]


def test_a_new_node_that_passes_joins() -> None:
    """A pass that started after `bench pending` was written lifts it."""
    assert _one((JOINING,), _bench("gpu1")).action == "release"


def test_a_failing_node_is_quarantined_with_its_verdicts() -> None:
    """A node in service, and one that joins, is quarantined with the failing verdicts and a reason that the record takes."""
    for standing in ((), (JOINING,)):
        decision = _one(standing, _bench("gpu1", {"bench_gemm": "fail"}))

        assert decision.action == "quarantine"
        assert [verdict.check for verdict in decision.verdicts] == ["bench_gemm"]
        assert decision.reason == "bench: bench_gemm failed: because"


def test_a_reason_is_one_short_line_without_quotes() -> None:
    """Whatever a verdict says, the quarantine's reason keeps to what the role `quarantine` takes."""
    decision = _one((), [Verdict("bench_gemm", "gpu1", "fail", reason='a "b" {c}|\n' * 40, device="3")])

    assert 3 <= len(decision.reason) <= 160
    assert not set("{}\"'|\\\n\r") & set(decision.reason)
    assert "(device 3)" in decision.reason


def test_what_the_policy_only_warns_of_keeps_nobody_out() -> None:
    """A failing check that only warns neither quarantines a node nor keeps one from joining; it is named."""
    verdicts = _bench("gpu1", {"preflight_swap": "fail"})

    assert _one((), verdicts).action == "leave"
    assert _one((JOINING,), verdicts).action == "release"
    assert "preflight_swap" in _one((JOINING,), verdicts).reason


@pytest.mark.parametrize("check", ["bench_gemm", "preflight_gpu_ecc", "bench_results"])
def test_no_answer_is_neither_good_nor_bad(check: str) -> None:
    """An unknown without a code (a hang, a tool that lies) keeps a joining node out, and a node in service in it."""
    verdicts = _bench("gpu1", {check: "unknown"})

    assert _one((JOINING,), verdicts).action == "hold"
    assert _one((), verdicts).action == "leave"


def test_a_new_cluster_without_a_yardstick_joins() -> None:
    """Measured, but nobody to be compared with: that alone keeps no node out; noise does."""
    verdicts = _bench("gpu1", {"bench_gemm": "unknown"})

    assert _one((JOINING,), verdicts, {verdicts[2]: "no_yardstick"}).action == "release"
    assert _one((JOINING,), verdicts, {verdicts[2]: "noise"}).action == "hold"


@pytest.mark.parametrize("missing", ["preflight_", "bench_gemm", "bench_memory_bandwidth"])
def test_a_lost_result_is_no_pass(missing: str) -> None:
    """A joining node without any verdict of a needed step stays out, also where all of them were skipped."""
    whole = _bench("gpu1")
    skipped = [Verdict(each.check, "gpu1", "skipped") for each in whole if each.check.startswith(missing)]
    rest = [each for each in whole if not each.check.startswith(missing)]

    assert _one((JOINING,), rest).action == "hold"
    assert _one((JOINING,), rest + skipped).action == "hold"
    assert _one((JOINING,), []).action == "hold"


def test_a_step_that_not_every_node_has_is_not_missed() -> None:
    """A node joins without verdicts of steps that are not needed: a single node has no fabric, a CPU no path to a GPU."""
    verdicts = [*_bench("gpu1"), *(Verdict(name, "gpu1", "pass", started=BENCHED) for name in ("bench_attention", "bench_launch_overhead"))]
    gate = decide([HostState("gpu1", (JOINING,))], verdicts, policy=POLICY, tier=POLICY.tiers["standard"], gpu_nodes=1, now=NOW)

    assert [each.action for each in gate.decisions] == ["release"]


def test_only_a_newer_pass_releases() -> None:
    """A pass from before the quarantine, or at its very moment, is no proof."""
    assert _one((OURS,), _bench("gpu1", started=500.0)).action == "hold"
    assert _one((OURS,), _bench("gpu1", started=500.1)).action == "release"


def test_clocks_that_differ_are_given_room() -> None:
    """Where another clock wrote the quarantine, a pass must be newer by the skew that the policy allows."""
    other = QuarantineRecord(OWNER, PENDING, 500.0)

    assert _one((other,), _bench("gpu1", started=500.0 + POLICY.clock_skew_s)).action == "hold"
    assert _one((other,), _bench("gpu1", started=500.1 + POLICY.clock_skew_s)).action == "release"


def test_a_clock_that_runs_ahead_proves_nothing() -> None:
    """A pass that starts in the future, or at no known time, is no proof."""
    assert _one((OURS,), _bench("gpu1", started=NOW + POLICY.clock_skew_s)).action == "release"
    assert "clock" in _one((OURS,), _bench("gpu1", started=NOW + POLICY.clock_skew_s + 1)).reason
    assert _one((OURS,), _bench("gpu1", started=NOW + POLICY.clock_skew_s + 1)).action == "hold"
    assert _one((OURS,), _bench("gpu1", started=0.0)).action == "hold"


@pytest.mark.parametrize("outcome", ["pass", "fail"])
def test_what_is_anothers_is_left_alone(outcome: Outcome) -> None:
    """Another's quarantine or drain, also beside ours, and a state that is not known, are never touched, whatever the bench says."""
    verdicts = _bench("gpu1", {"bench_gemm": outcome})

    assert _one((ADA,), verdicts).action == "leave"
    assert _one((OURS, ADA), verdicts).action == "leave"
    assert _one((), verdicts, known=False).action == "leave"
    assert ("bench_gemm" in _one((ADA,), verdicts).reason) == (outcome == "fail")


def test_a_node_in_quarantine_is_not_quarantined_twice() -> None:
    """A node that the bench has out of service and that fails again stays as it is."""
    assert _one((OURS,), _bench("gpu1", {"bench_gemm": "fail"})).action == "leave"


def test_a_bad_path_is_nobodys_fault() -> None:
    """A verdict of two hosts changes nothing for either."""
    verdicts = [*_bench("gpu1"), Verdict("fabric_pairs", "gpu1,gpu2", "fail", started=BENCHED)]

    assert _one((JOINING,), verdicts).action == "release"


@pytest.mark.parametrize(("nodes", "percent", "most"), [(6, 10, 1), (64, 10, 6), (1, 10, 1), (100, 0, 0), (10, 100, 10), (29, 10, 2)])
def test_how_many_may_be_quarantined(nodes: int, percent: float, most: int) -> None:
    """The share of the GPU nodes, rounded down; one at least, and none where the share is 0."""
    assert max_quarantined(nodes, percent) == most


def _fleet(failing: int, size: int = 20) -> tuple[list[HostState], list[Verdict]]:
    states = [HostState(f"gpu{number}") for number in range(size)]
    verdicts = [each for n, state in enumerate(states) for each in _bench(state.host, {"bench_gemm": "fail" if n < failing else "pass"})]
    return states, verdicts


def test_the_breaker_holds_all_of_them() -> None:
    """Where more would be quarantined than the limit allows, none is, and a record says why, since when and whom it is about."""
    within, beyond = _gate(*_fleet(2)), _gate(*_fleet(3))

    assert [each.action for each in within.decisions[:3]] == ["quarantine", "quarantine", "leave"]
    assert (within.breaker, within.tripped) == (None, False)
    assert {each.action for each in beyond.decisions} == {"hold", "leave"}
    assert beyond.tripped
    assert beyond.breaker is not None
    assert beyond.breaker.hosts == ("gpu0", "gpu1", "gpu2")
    assert (beyond.breaker.since, "3 of 20" in beyond.breaker.reason) == (NOW, True)


def test_nodes_that_are_ours_already_count() -> None:
    """Quarantines of earlier benches count towards the limit; nodes that only wait for their first bench do not."""
    states, verdicts = _fleet(1)
    out = [HostState("x1", (OURS,)), HostState("x2", (OURS,))]

    assert _gate([*states[:18], *out], verdicts).tripped
    assert not _gate([*states[:18], HostState("x1", (JOINING,)), HostState("x2", (JOINING,))], verdicts).tripped


def test_only_a_person_resets_the_breaker() -> None:
    """A standing breaker holds a single new quarantine too, keeps its record, and does not keep who passes from coming back."""
    standing = Breaker("the switch", 7.0, ("gpu3",), 10.0)
    gate = _gate(
        [HostState("gpu1"), HostState("gpu2", (OURS,))], [*_bench("gpu1", {"bench_gemm": "fail"}), *_bench("gpu2")], breaker=standing
    )

    assert [each.action for each in gate.decisions] == ["hold", "release"]
    assert (gate.breaker, gate.tripped) == (standing, False)


def test_a_failing_joiner_stays_out_under_the_breaker() -> None:
    """Whoever fails while it joins is not quarantined by a standing breaker, and not released either."""
    gate = _gate([HostState("gpu1", (JOINING,))], _bench("gpu1", {"bench_gemm": "fail"}), breaker=Breaker("the switch", 7.0, (), 10.0))

    assert [each.action for each in gate.decisions] == ["hold"]


def test_a_breaker_is_kept_as_a_record() -> None:
    """It reads back as it was written; a damaged record is a breaker all the same."""
    breaker = _gate(*_fleet(9)).breaker

    assert breaker is not None
    assert parse_breaker(json.loads(json.dumps(breaker.to_json()))) == breaker
    assert "cannot be read" in parse_breaker({"reason": "x"}).reason


def test_decisions_are_plain_data_in_the_order_of_the_states() -> None:
    """Decisions come in the order of the states, whatever the order of the verdicts, and their verdicts read back."""
    states, verdicts = _fleet(2)
    gate = _gate(states, verdicts)
    data = json.loads(json.dumps(gate.to_json()))

    assert [each["host"] for each in data["decisions"]] == [state.host for state in states]
    assert data == json.loads(json.dumps(_gate(states, verdicts[::-1]).to_json()))
    assert [parse_verdict(each) for each in data["decisions"][0]["verdicts"]] == list(gate.decisions[0].verdicts)


@given(st.data())
def test_never_more_than_the_limit_and_never_anothers(data: st.DataObject) -> None:
    """Whatever is found, quarantines stay within the limit, another's host is left, and nobody is released with a fail that matters."""
    standings = st.sampled_from([(), (JOINING,), (OURS,), (ADA,), (OURS, ADA)])
    states = [HostState(f"gpu{number}", data.draw(standings)) for number in range(data.draw(st.integers(1, 12)))]
    words = st.sampled_from(OUTCOMES)
    verdicts = [each for state in states for each in _bench(state.host, {name: data.draw(words) for name in CHECKS})]
    gate = _gate(states, verdicts)
    new = [each for each in gate.decisions if each.action == "quarantine"]
    ours = sum(OURS in state.records for state in states)
    failing = {each.host for each in verdicts if each.verdict == "fail" and each.check != "preflight_swap"}

    assert not new or len(new) + ours <= max_quarantined(max(10, len(states)), POLICY.limit_percent)
    assert all(gate.decisions[n].action == "leave" for n, state in enumerate(states) if ADA in state.records)
    assert not failing & {each.host for each in gate.decisions if each.action == "release"}
