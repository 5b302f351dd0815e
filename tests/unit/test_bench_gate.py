"""The gate quarantines only with proof, releases only its own quarantines, and respects the limit."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
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
from primus_bootstrap.core.verdicts import OUTCOMES, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.bench.reason_codes import Code

POLICY = load_policy()
TIER = POLICY.tiers["quick"]
PASS: Outcome = "pass"
CHECKS = ("preflight_gpu_ecc", "preflight_swap", "bench_gemm", "bench_memory_bandwidth")
BENCHED, NOW = 1000.0, 1100.0
OURS = QuarantineRecord(OWNER, "bench: bench_gemm failed", 500.0, own_clock=True)
JOINING = QuarantineRecord(OWNER, PENDING, 500.0, own_clock=True)
ADA = QuarantineRecord("ada", "fan broken", 500.0)


def _bench(host: str, outcomes: Mapping[str, Outcome] = MappingProxyType({}), started: float = BENCHED) -> list[Verdict]:
    """Return verdicts of the tier quick: passes, except for the given outcomes."""
    by_check: dict[str, Outcome] = {**dict.fromkeys(CHECKS, PASS), **outcomes}
    return [Verdict(check, host, word, reason="because", started=started) for check, word in by_check.items()]


def _gate(
    states: list[HostState], verdicts: list[Verdict], *, breaker: Breaker | None = None, codes: dict[Verdict, Code] | None = None
) -> GateResult:
    return decide(states, verdicts, policy=POLICY, tier=TIER, gpu_nodes=max(10, len(states)), now=NOW, codes=codes or {}, breaker=breaker)


def _one(
    records: tuple[QuarantineRecord, ...], verdicts: list[Verdict], codes: dict[Verdict, Code] | None = None, *, known: bool = True
) -> Decision:
    return _gate([HostState("gpu1", records, known)], verdicts, codes=codes).decisions[0]


def test_a_new_node_that_passes_is_released() -> None:
    """A pass that started after `bench pending` was written releases it."""
    assert _one((JOINING,), _bench("gpu1")).action == "release"


def test_a_failing_node_is_quarantined_with_its_verdicts() -> None:
    """In service or joining: the decision has the failed verdicts and a reason for the record."""
    for records in ((), (JOINING,)):
        decision = _one(records, _bench("gpu1", {"bench_gemm": "fail"}))

        assert decision.action == "quarantine"
        assert [verdict.check for verdict in decision.verdicts] == ["bench_gemm"]
        assert decision.reason == "bench: bench_gemm failed: because"


def test_a_reason_is_one_short_line_without_quotes() -> None:
    """The role `quarantine` accepts the reason of any verdict."""
    decision = _one((), [Verdict("bench_gemm", "gpu1", "fail", reason='a "b" {c}|\n' * 40, device="3")])

    assert 3 <= len(decision.reason) <= 160
    assert not set("{}\"'|\\\n\r") & set(decision.reason)
    assert "(device 3)" in decision.reason


def test_a_check_with_a_warning_keeps_no_node_out() -> None:
    """It neither quarantines a node nor keeps it from joining; the reason names it."""
    verdicts = _bench("gpu1", {"preflight_swap": "fail"})

    assert _one((), verdicts).action == "leave"
    assert _one((JOINING,), verdicts).action == "release"
    assert "preflight_swap" in _one((JOINING,), verdicts).reason


@pytest.mark.parametrize("check", ["bench_gemm", "preflight_gpu_ecc", "bench_results"])
def test_a_check_without_an_answer_changes_nothing(check: str) -> None:
    """An unknown verdict without a code keeps a joining node out, and a node in service in service."""
    verdicts = _bench("gpu1", {check: "unknown"})

    assert _one((JOINING,), verdicts).action == "hold"
    assert _one((), verdicts).action == "leave"


def test_nodes_without_anything_to_compare_with_join() -> None:
    """`no_reference` keeps no node out; `noise` does."""
    verdicts = _bench("gpu1", {"bench_gemm": "unknown"})

    assert _one((JOINING,), verdicts, {verdicts[2]: "no_reference"}).action == "release"
    assert _one((JOINING,), verdicts, {verdicts[2]: "noise"}).action == "hold"


@pytest.mark.parametrize("missing", ["preflight_", "bench_gemm", "bench_memory_bandwidth"])
def test_a_missing_verdict_keeps_a_node_out(missing: str) -> None:
    """A joining node needs a verdict of every needed step, and a skipped one does not count."""
    whole = _bench("gpu1")
    skipped = [Verdict(verdict.check, "gpu1", "skipped") for verdict in whole if verdict.check.startswith(missing)]
    rest = [verdict for verdict in whole if not verdict.check.startswith(missing)]

    assert _one((JOINING,), rest).action == "hold"
    assert _one((JOINING,), rest + skipped).action == "hold"
    assert _one((JOINING,), []).action == "hold"


def test_a_step_that_is_not_needed_may_be_missing() -> None:
    """A single node has no fabric, and a CPU no path to a GPU."""
    verdicts = [*_bench("gpu1"), *(Verdict(name, "gpu1", "pass", started=BENCHED) for name in ("bench_attention", "bench_launch_overhead"))]
    gate = decide([HostState("gpu1", (JOINING,))], verdicts, policy=POLICY, tier=POLICY.tiers["standard"], gpu_nodes=1, now=NOW)

    assert [decision.action for decision in gate.decisions] == ["release"]


def test_only_a_newer_pass_releases() -> None:
    """A pass from before the quarantine, or at the same time, is no proof."""
    assert _one((OURS,), _bench("gpu1", started=500.0)).action == "hold"
    assert _one((OURS,), _bench("gpu1", started=500.1)).action == "release"


def test_the_clock_skew_is_added_for_another_clock() -> None:
    """If another host's clock wrote the record, a pass must be newer by the skew of the policy."""
    other = QuarantineRecord(OWNER, PENDING, 500.0)

    assert _one((other,), _bench("gpu1", started=500.0 + POLICY.clock_skew_s)).action == "hold"
    assert _one((other,), _bench("gpu1", started=500.1 + POLICY.clock_skew_s)).action == "release"


def test_a_pass_in_the_future_is_no_proof() -> None:
    """Nor is one with an unknown start time."""
    assert _one((OURS,), _bench("gpu1", started=NOW + POLICY.clock_skew_s)).action == "release"
    assert "clock" in _one((OURS,), _bench("gpu1", started=NOW + POLICY.clock_skew_s + 1)).reason
    assert _one((OURS,), _bench("gpu1", started=NOW + POLICY.clock_skew_s + 1)).action == "hold"
    assert _one((OURS,), _bench("gpu1", started=0.0)).action == "hold"


@pytest.mark.parametrize("outcome", ["pass", "fail"])
def test_quarantines_of_others_are_left_alone(outcome: Outcome) -> None:
    """So are nodes with an unknown state, whatever the bench found."""
    verdicts = _bench("gpu1", {"bench_gemm": outcome})

    assert _one((ADA,), verdicts).action == "leave"
    assert _one((OURS, ADA), verdicts).action == "leave"
    assert _one((), verdicts, known=False).action == "leave"
    assert ("bench_gemm" in _one((ADA,), verdicts).reason) == (outcome == "fail")


def test_a_node_in_quarantine_is_not_quarantined_twice() -> None:
    """A node that the bench quarantined before and that fails again stays as it is."""
    assert _one((OURS,), _bench("gpu1", {"bench_gemm": "fail"})).action == "leave"


def test_a_bad_path_counts_for_neither_host() -> None:
    """A verdict on two hosts changes nothing for either."""
    verdicts = [*_bench("gpu1"), Verdict("fabric_pairs", "gpu1,gpu2", "fail", started=BENCHED)]

    assert _one((JOINING,), verdicts).action == "release"


@pytest.mark.parametrize(("nodes", "percent", "most"), [(6, 10, 1), (64, 10, 6), (1, 10, 1), (100, 0, 0), (10, 100, 10), (29, 10, 2)])
def test_the_limit_of_quarantines(nodes: int, percent: float, most: int) -> None:
    """The share of the GPU nodes, rounded down; at least one, but none for 0 %."""
    assert max_quarantined(nodes, percent) == most


def _fleet(failing: int, size: int = 20) -> tuple[list[HostState], list[Verdict]]:
    states = [HostState(f"gpu{number}") for number in range(size)]
    verdicts = [
        verdict for n, state in enumerate(states) for verdict in _bench(state.host, {"bench_gemm": "fail" if n < failing else "pass"})
    ]
    return states, verdicts


def test_the_breaker_holds_all_quarantines() -> None:
    """Beyond the limit no node is quarantined; the breaker has reason, time and hosts."""
    within, beyond = _gate(*_fleet(2)), _gate(*_fleet(3))

    assert [decision.action for decision in within.decisions[:3]] == ["quarantine", "quarantine", "leave"]
    assert (within.breaker, within.tripped) == (None, False)
    assert {decision.action for decision in beyond.decisions} == {"hold", "leave"}
    assert beyond.tripped
    assert beyond.breaker is not None
    assert beyond.breaker.hosts == ("gpu0", "gpu1", "gpu2")
    assert (beyond.breaker.since, "3 of 20" in beyond.breaker.reason) == (NOW, True)


def test_earlier_quarantines_count_against_the_limit() -> None:
    """Nodes that wait for their first bench do not."""
    states, verdicts = _fleet(1)
    out = [HostState("x1", (OURS,)), HostState("x2", (OURS,))]

    assert _gate([*states[:18], *out], verdicts).tripped
    assert not _gate([*states[:18], HostState("x1", (JOINING,)), HostState("x2", (JOINING,))], verdicts).tripped


def test_an_open_breaker_stays_open() -> None:
    """It holds a single new quarantine too, and does not prevent releases."""
    opened = Breaker("the switch", 7.0, ("gpu3",), 10.0)
    gate = _gate(
        [HostState("gpu1"), HostState("gpu2", (OURS,))], [*_bench("gpu1", {"bench_gemm": "fail"}), *_bench("gpu2")], breaker=opened
    )

    assert [decision.action for decision in gate.decisions] == ["hold", "release"]
    assert (gate.breaker, gate.tripped) == (opened, False)


def test_a_failing_new_node_stays_out_with_an_open_breaker() -> None:
    """It is neither quarantined nor released."""
    gate = _gate([HostState("gpu1", (JOINING,))], _bench("gpu1", {"bench_gemm": "fail"}), breaker=Breaker("the switch", 7.0, (), 10.0))

    assert [decision.action for decision in gate.decisions] == ["hold"]


def test_a_breaker_is_read_as_it_was_written() -> None:
    """A damaged record is an open breaker too."""
    breaker = _gate(*_fleet(9)).breaker

    assert breaker is not None
    assert parse_breaker(json.loads(json.dumps(breaker.to_json()))) == breaker
    assert "cannot be read" in parse_breaker({"reason": "x"}).reason


def test_decisions_are_in_the_order_of_the_states() -> None:
    """Whatever the order of the verdicts."""
    states, verdicts = _fleet(2)
    gate = _gate(states, verdicts)

    assert [decision.host for decision in gate.decisions] == [state.host for state in states]
    assert gate == _gate(states, verdicts[::-1])


@settings(deadline=None)
@given(st.data())
def test_the_limit_and_other_owners_are_always_respected(data: st.DataObject) -> None:
    """No node with a failed check that matters is released."""
    records = st.sampled_from([(), (JOINING,), (OURS,), (ADA,), (OURS, ADA)])
    states = [HostState(f"gpu{number}", data.draw(records)) for number in range(data.draw(st.integers(1, 12)))]
    words = st.sampled_from(OUTCOMES)
    verdicts = [verdict for state in states for verdict in _bench(state.host, {name: data.draw(words) for name in CHECKS})]
    gate = _gate(states, verdicts)
    new = [decision for decision in gate.decisions if decision.action == "quarantine"]
    present = sum(OURS in state.records for state in states)
    failing = {verdict.host for verdict in verdicts if verdict.verdict == "fail" and verdict.check != "preflight_swap"}

    assert not new or len(new) + present <= max_quarantined(max(10, len(states)), POLICY.limit_percent)
    assert all(gate.decisions[n].action == "leave" for n, state in enumerate(states) if ADA in state.records)
    assert not failing & {decision.host for decision in gate.decisions if decision.action == "release"}
