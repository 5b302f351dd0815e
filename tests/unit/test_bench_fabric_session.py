"""The rounds of runs over several hosts, with simulated hosts: from the first round to the verdicts, with the real store."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.bench.fabric.schedule import find_locations
from primus_bootstrap.bench.fabric.session import LOST, group_part, has_started, next_round
from primus_bootstrap.bench.finalize import finish
from primus_bootstrap.bench.judging.evaluation import BenchedFleet
from primus_bootstrap.bench.quarantine.policy import SHIPPED
from primus_bootstrap.bench.report.bench_report import read_run
from primus_bootstrap.bench.results.step_commands import BenchRequest, read_policy
from primus_bootstrap.bench.results.store import BenchStore
from tests.unit.bench_group_rig import NOW, Hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from primus_bootstrap.core.verdicts import Verdict

PRINT = {"driver": "6.10", "firmware": "1", "kernel": "6.1", "profile": "abc"}
PREFLIGHT = {"run": "preflight", "timeout_s": 60}
PAIRS = {"run": "collectives", "over": "pairs", "inside": 9, "across": 0, "timeout_s": 60, "repeats": 7}
FABRIC = {"run": "collectives", "over": "fabric", "timeout_s": 60, "repeats": 7}


@dataclass
class Bench:
    """A bench that runs round by round. `before` is called with the number of each round before its hosts run."""

    store: BenchStore
    fleet: BenchedFleet
    hosts: Hosts
    lost: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    beside: set[str] = field(default_factory=set)
    rounds: list[list[list[str]]] = field(default_factory=list)
    before: Callable[[int], None] = lambda _number: None
    at_once: int = 0
    late_s: float = 0.0

    def run(self, most: int = 400) -> dict[tuple[str, str], Verdict]:
        """Run every round and finish; return the verdicts of the report by check and host."""
        while self._next() and len(self.rounds) < most:
            state = self.store.fabric_state()
            assert state
            self.rounds.append([list(run.hosts) for run in state.runs])
            self.before(len(self.rounds))
            for run in state.runs:
                present = [host for host in run.hosts if host not in self.lost | self.busy]
                for host in set(run.hosts) & self.busy - self.lost:
                    self.store.save_group_answer(host, {"absent": "jobs run on it: Slurm job 7"})
                for host in present:
                    self.store.save_group_answer(host, {"started": True})
                started = has_started(self.store, run.hosts)
                answers = self.hosts.run(run.hosts) if started else {host: {"cut": "it was ended"} for host in present}
                for host in present:
                    answer: dict[str, Any] = dict(answers[host])
                    if host in self.beside:
                        answer["step"] = {**answer["step"], "jobs": ["Slurm job 7"]}
                    self.store.save_group_answer(host, {"started": True, **answer})
        finish(self.store, self.fleet)
        report = read_run(self.store.last_report() / "bench.json")
        return {(verdict.check, verdict.host): verdict for verdict in report.verdicts if verdict.check.startswith("fabric_")}

    def _next(self) -> str:
        present = [host for host in self.fleet.hosts if host not in self.lost]
        fleet = replace(self.fleet, now=NOW + self.late_s)
        facts = {host: {"address": f"10.0.0.{number}", "switch": "", "rack": ""} for number, host in enumerate(self.fleet.hosts)}
        return next_round(self.store, fleet, present=present, facts=lambda: facts, at_once=self.at_once)


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    """Return a function that starts a bench with these steps; all hosts passed their own steps."""

    def begin(count: int, *steps: dict[str, Any], failed: str = "", jobs: str = "", **hosts: Any) -> Bench:
        data = yaml.safe_load(SHIPPED.read_text())
        data["tiers"] = {"wide": {"meaning": "several hosts", "budget_s": 1000, "steps": [PREFLIGHT, *steps]}}
        policy = tmp_path / "policy.yml"
        policy.write_text(yaml.safe_dump(data))
        store = BenchStore(tmp_path / "bench")
        store.begin(str(policy), "wide")
        names = tuple(f"n{number}" for number in range(count))
        for name in names:
            store.save_facts(
                name,
                {"due": "changed", "fingerprint": PRINT, "record": {}, "now": NOW, "gpus": 0},
            )
            record = {"check": "preflight_gpu_ecc", "host": name, "verdict": "fail" if name == failed else "pass", "started": NOW}
            step = {"name": "preflight", "code": 0, "error": "", "stdout": json.dumps({"verdicts": [record]}), "stderr": "", "results": []}
            store.add_round(name, [{**step, "started": NOW, "seconds": 1.0, "jobs": ["job 7"] if name == jobs else []}], now=NOW)
        return Bench(store, BenchedFleet("c", names, 20, str(policy), "wide", 10.0, NOW + 100), Hosts(**hosts))

    return begin


def outcomes(verdicts: dict[tuple[str, str], Verdict], check: str) -> dict[str, str]:
    """Return the outcomes of a check by host."""
    return {host: verdict.verdict for (name, host), verdict in verdicts.items() if name == check}


def test_healthy_hosts_pass_by_pairs_and_by_bisection(bench: Callable[..., Bench]) -> None:
    """Disjoint pairs run at the same time, the whole fabric runs three times, and the report has all runs."""
    bench_run = bench(6, PAIRS, FABRIC)
    verdicts = bench_run.run()

    assert [len(groups) for groups in bench_run.rounds] == [3] * 5 + [3, 3] + [1] * 3
    assert all(len(hosts) == len(set(hosts)) for groups in bench_run.rounds for hosts in [[host for run in groups for host in run]])
    assert set(outcomes(verdicts, "fabric_pairs").values()) == {"pass"}
    assert set(outcomes(verdicts, "fabric_bisection").values()) == {"pass"}
    assert verdicts["fabric_pairs", "n0"].source == "15 pairs of 6 hosts"
    assert verdicts["fabric_bisection", "n0"].source == "bisection of 6 hosts in 3 runs"
    assert verdicts["fabric_bisection", "n0"].started == NOW
    assert len((bench_run.store.last_report() / "fabric.jsonl").read_text().splitlines()) == 15 + 6 + 3


@pytest.mark.parametrize("fault", [{"slow": {"n4": 4.0}}, {"broken": frozenset({"n4"})}, {"wrong": frozenset({"n4"})}])
def test_only_the_bad_host_fails(bench: Callable[..., Bench], fault: dict[str, Any]) -> None:
    """A slow, broken or wrong host fails by pairs and by bisection, and is quarantined with the reason of a run."""
    bench_run = bench(8, PAIRS, FABRIC, **fault)
    verdicts = bench_run.run()
    decisions = json.loads((bench_run.store.folder / "decisions.json").read_text())

    for check in ("fabric_pairs", "fabric_bisection"):
        assert {host for host, outcome in outcomes(verdicts, check).items() if outcome == "fail"} == {"n4"}
        assert {host for host, outcome in outcomes(verdicts, check).items() if outcome == "pass"} == set(bench_run.fleet.hosts) - {"n4"}
    assert [record["host"] for record in decisions["records"]] == ["n4"]
    assert "; " in verdicts["fabric_pairs", "n4"].reason


def test_undecided_pairs_run_once_more(bench: Callable[..., Bench]) -> None:
    """When all pairs have run, those of the slow host run again, and both runs count."""
    bench_run = bench(8, PAIRS, slow={"n4": 1.02})
    bench_run.run()
    times = Counter(frozenset(hosts) for groups in bench_run.rounds for hosts in groups)

    assert [len(groups) for groups in bench_run.rounds] == [4] * 7 + [1] * 7
    assert {pair for pair, count in times.items() if count == 2} == {frozenset(("n4", host)) for host in bench_run.fleet.hosts} - {
        frozenset(("n4",))
    }


def test_a_pair_that_fails_once_is_an_unsteady_path(bench: Callable[..., Bench]) -> None:
    """Its hosts pass, because they pass with all others."""
    bench_run = bench(6, PAIRS)
    pair, real = {"n1", "n4"}, bench_run.hosts.run

    def run(hosts: Sequence[str]) -> dict[str, dict[str, Any]]:
        first = set(hosts) == pair and not any(set(group) == pair for group in bench_run.hosts.ran)
        bench_run.hosts.broken = frozenset(pair if first else ())
        return real(hosts)

    bench_run.hosts.run = run  # type: ignore[method-assign]
    verdicts = bench_run.run()
    path = next(verdict for (_, host), verdict in verdicts.items() if "," in host)

    assert set(path.host.split(",")) == pair
    assert (path.verdict, path.reason.split(" (")[0]) == ("unknown", "unsteady: 1 of 2 runs failed")
    assert {host: outcome for host, outcome in outcomes(verdicts, "fabric_pairs").items() if "," not in host} == dict.fromkeys(
        bench_run.fleet.hosts, "pass"
    )


def test_a_pair_without_an_answer_runs_again(bench: Callable[..., Bench]) -> None:
    """The second run decides."""
    bench_run = bench(6, PAIRS)
    bench_run.before = lambda number: setattr(bench_run.hosts, "hanging", frozenset({"n2"} if number <= 5 else ()))
    verdicts = bench_run.run()

    assert set(outcomes(verdicts, "fabric_pairs").values()) == {"pass"}


def test_a_host_that_hangs_runs_is_unknown(bench: Callable[..., Bench]) -> None:
    """By pairs and by bisection; its partners pass."""
    verdicts = bench(6, PAIRS, FABRIC, hanging=frozenset({"n2"})).run()

    for check in ("fabric_pairs", "fabric_bisection"):
        assert outcomes(verdicts, check) == {**dict.fromkeys(("n0", "n1", "n3", "n4", "n5"), "pass"), "n2": "unknown"}


@pytest.mark.parametrize("when", [2, 7, 9])
def test_a_host_that_is_lost_is_unknown_and_the_others_go_on(bench: Callable[..., Bench], when: int) -> None:
    """During the pairs, the comparison or the bisection, it takes no further part, and no other host is affected."""
    bench_run = bench(6, PAIRS, FABRIC)
    bench_run.before = lambda number: bench_run.lost.add("n3") if number == when else None
    verdicts = bench_run.run()

    assert not any("n3" in hosts for groups in bench_run.rounds[when:] for hosts in groups)
    assert verdicts["fabric_bisection", "n3"].verdict == "unknown"
    assert verdicts["fabric_bisection", "n3"].reason == LOST
    for check in ("fabric_pairs", "fabric_bisection"):
        assert {host: outcome for host, outcome in outcomes(verdicts, check).items() if outcome != "pass"} == {"n3": "unknown"}


def test_a_host_that_gets_a_job_leaves(bench: Callable[..., Bench]) -> None:
    """It is not measured and is unknown; the partners that started with it are ended and go on in the next round."""
    bench_run = bench(6, PAIRS)
    bench_run.before = lambda number: bench_run.busy.add("n3") if number == 3 else None
    verdicts = bench_run.run()

    assert outcomes(verdicts, "fabric_pairs") == {**dict.fromkeys(("n0", "n1", "n2", "n4", "n5"), "pass"), "n3": "unknown"}
    assert verdicts["fabric_pairs", "n3"].reason == "jobs run on it: Slurm job 7"


def test_a_job_beside_a_run_spoils_only_that_run(bench: Callable[..., Bench]) -> None:
    """The run is unknown even if its program failed, the host leaves, and the partner goes on."""
    bench_run = bench(6, PAIRS, broken=frozenset({"n3"}))
    bench_run.beside = {"n3"}
    verdicts = bench_run.run()
    ran = [json.loads(line) for line in (bench_run.store.last_report() / "fabric.jsonl").read_text().splitlines()]

    assert outcomes(verdicts, "fabric_pairs") == {**dict.fromkeys(("n0", "n1", "n2", "n4", "n5"), "pass"), "n3": "unknown"}
    assert verdicts["fabric_pairs", "n3"].reason == "jobs run on it: Slurm job 7"
    assert [one["answer"] for one in ran if "n3" in one["hosts"]] == ["unknown"]


def test_failed_and_busy_hosts_take_no_part(bench: Callable[..., Bench]) -> None:
    """A failed host is skipped, a busy one is unknown, each with the reason."""
    bench_run = bench(8, PAIRS, failed="n1", jobs="n2")
    verdicts = bench_run.run()

    assert {host for groups in bench_run.rounds for hosts in groups for host in hosts} == set(bench_run.fleet.hosts) - {"n1", "n2"}
    assert verdicts["fabric_pairs", "n1"].verdict == "skipped"
    assert verdicts["fabric_pairs", "n1"].reason == "it did not pass its own steps: preflight_gpu_ecc"
    assert (verdicts["fabric_pairs", "n2"].verdict, verdicts["fabric_pairs", "n2"].reason) == ("unknown", "jobs run on it")


def test_a_single_host_is_skipped(bench: Callable[..., Bench]) -> None:
    """With the reason, and without a run."""
    bench_run = bench(2, PAIRS, FABRIC, failed="n1")
    verdicts = bench_run.run()

    assert bench_run.rounds == []
    assert verdicts["fabric_bisection", "n0"].verdict == "skipped"
    assert "only 1 host is idle and passed its own steps" in verdicts["fabric_bisection", "n0"].reason


def test_the_speed_of_three_hosts_is_unknown(bench: Callable[..., Bench]) -> None:
    """No host fails for its speed, and with a policy that only warns they pass."""
    bench_run = bench(3, PAIRS, FABRIC, slow={"n2": 10.0})
    verdicts = bench_run.run()
    decisions = json.loads((bench_run.store.folder / "decisions.json").read_text())

    for check in ("fabric_pairs", "fabric_bisection"):
        assert set(outcomes(verdicts, check).values()) == {"unknown"}
    assert "it works with 2 partners" in verdicts["fabric_pairs", "n0"].reason
    assert sorted(decisions["passes"]) == ["n0", "n1", "n2"]


def test_three_hosts_prove_a_broken_one(bench: Callable[..., Bench]) -> None:
    """It fails with two partners that pass together."""
    verdicts = bench(3, PAIRS, broken=frozenset({"n2"})).run()

    assert outcomes(verdicts, "fabric_pairs") == {"n0": "unknown", "n1": "unknown", "n2": "fail"}


def test_four_hosts_prove_a_slow_one_by_bisection(bench: Callable[..., Bench]) -> None:
    """Six pairs are enough for a comparison; the slow host fails with three partners, which are fast without it."""
    verdicts = bench(4, FABRIC, slow={"n2": 10.0}).run()

    assert outcomes(verdicts, "fabric_bisection") == {"n0": "pass", "n1": "pass", "n2": "fail", "n3": "pass"}


def test_after_the_time_budget_the_rest_is_unknown(bench: Callable[..., Bench]) -> None:
    """Finished runs count; a host without a run is unknown for that reason."""
    bench_run = bench(8, {**PAIRS, "inside": 1}, FABRIC)
    bench_run.before = lambda number: setattr(bench_run, "late_s", 1001.0) if number == 2 else None
    verdicts = bench_run.run()

    assert len(bench_run.rounds) == 2
    assert "fail" not in {verdict.verdict for verdict in verdicts.values()}
    assert set(outcomes(verdicts, "fabric_bisection").values()) == {"unknown"}
    assert verdicts["fabric_bisection", "n0"].reason.startswith("the tier's time budget (1000 s) is used up")


def test_interrupted_rounds_fail_no_host(bench: Callable[..., Bench]) -> None:
    """If the rounds end before the search, missing answers are unknown."""
    verdicts = bench(8, FABRIC, broken=frozenset({"n4"})).run(most=4)

    assert {verdict.verdict for verdict in verdicts.values()} <= {"unknown", "pass"}
    assert "unknown" in outcomes(verdicts, "fabric_bisection").values()


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (2, 1), (5, 2), (0, 4)])
def test_at_once_limits_the_pairs_of_a_round(bench: Callable[..., Bench], at_once: int, most: int) -> None:
    """A pair needs two hosts; all pairs still run."""
    bench_run = bench(8, PAIRS)
    bench_run.at_once = at_once
    bench_run.run()

    assert max(len(groups) for groups in bench_run.rounds) == most
    assert sum(len(groups) for groups in bench_run.rounds) == 28


def test_each_host_gets_its_rank_in_the_group(bench: Callable[..., Bench]) -> None:
    """Rank, master address and port are those of the group; the port changes with each group unless it is configured."""
    bench_run = bench(4, PAIRS)
    tier = read_policy(bench_run.fleet.policy_file).tiers["wide"]
    bench_run._next()
    state = bench_run.store.fabric_state()
    assert state
    one, other = state.runs[0].hosts
    request = BenchRequest("wide", "", "primus-cli", "", "", force=True)
    parts = {host: part for host in (one, other) if (part := group_part(bench_run.store, host, request, tier, port=0))}
    commands = {host: part.step["argv"] for host, part in parts.items()}
    shared = set(commands[one]) & set(commands[other])
    stated = group_part(bench_run.store, one, replace(request, image="img"), tier, port=29400)

    assert commands[one][:6] == ["primus-cli", "--output", "{run}/out", "direct", "--nnodes=2", "--node-rank=0"]
    assert commands[one][9:12] == ["--", "benchmark", "collectives"]
    assert "--node-rank=1" in commands[other]
    assert "--master-addr=10.0.0.0" in shared
    assert any(word.startswith("--master-port=") for word in shared)
    assert parts[one].step["timeout_s"] == 120
    assert stated
    assert stated.step["argv"][3:6] == ["container", "--image", "img"]
    assert "--master-port=29400" in stated.step["argv"]
    assert group_part(bench_run.store, "elsewhere", request, tier, port=0) is None


def test_a_group_has_started_if_all_its_hosts_have(bench: Callable[..., Bench]) -> None:
    """Answers of an earlier round do not count."""
    bench_run = bench(4, PAIRS)
    bench_run._next()
    before = has_started(bench_run.store, ["n0", "n1"])
    bench_run.store.save_group_answer("n0", {"started": True})
    one = has_started(bench_run.store, ["n0", "n1"])
    bench_run.store.save_group_answer("n1", {"started": True})
    both = has_started(bench_run.store, ["n0", "n1"])
    bench_run._next()

    assert (before, one, both) == (False, False, True)
    assert not has_started(bench_run.store, ["n0", "n1"])


def test_locations_are_switches_else_racks_else_one() -> None:
    """As in Slurm's topology. Addresses in several subnets are not several racks."""
    plain = {"switch": "", "rack": "", "address": "10.0.1.7"}

    assert find_locations({"a": {**plain, "switch": "s1", "rack": "r1"}, "b": plain}) == {"a": "s1", "b": ""}
    assert find_locations({"a": {**plain, "rack": "r1"}, "b": {**plain, "rack": "r2"}}) == {"a": "r1", "b": "r2"}
    assert find_locations({"a": plain, "b": {**plain, "address": "10.0.2.7"}, "c": {**plain, "address": "gpu3"}}) == {
        "a": "unplaced",
        "b": "unplaced",
        "c": "unplaced",
    }
