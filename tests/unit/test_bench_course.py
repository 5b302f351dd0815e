"""The rounds of runs over several hosts, with a runner that stands in for hosts: from who takes part to verdicts, by the real desk."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.bench.fabric.fabric_store import LOST, FabricStore
from primus_bootstrap.bench.fabric.schedule import places_of
from primus_bootstrap.bench.fabric.session import next_round
from primus_bootstrap.bench.finalize import finish
from primus_bootstrap.bench.judging.evaluation import BenchedFleet
from primus_bootstrap.bench.quarantine.policy import SHIPPED
from primus_bootstrap.bench.report.bench_report import read_run
from primus_bootstrap.bench.results.run_store import last_run
from primus_bootstrap.bench.results.store import BenchRequest, BenchStore, read_policy
from tests.unit.bench_course_rig import NOW, Hosts

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
    """A bench that goes on round by round. `before` is called with the number of each round, before its hosts run."""

    desk: BenchStore
    case: BenchedFleet
    hosts: Hosts
    lost: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    beside: set[str] = field(default_factory=set)
    rounds: list[list[list[str]]] = field(default_factory=list)
    before: Callable[[int], None] = lambda _number: None
    at_once: int = 0
    late_s: float = 0.0

    def go(self, most: int = 400) -> dict[tuple[str, str], Verdict]:
        """Run every round, then judge; return the verdicts of the report by check and host."""
        fabric = FabricStore(self.desk)
        while self._next() and len(self.rounds) < most:
            state = fabric.state()
            self.rounds.append([run["hosts"] for run in state["runs"]])
            self.before(len(self.rounds))
            for run in state["runs"]:
                there = [host for host in run["hosts"] if host not in self.lost | self.busy]
                for host in set(run["hosts"]) & self.busy - self.lost:
                    fabric.keep(host, {"absent": "jobs run on it: Slurm job 7"})
                for host in there:
                    fabric.keep(host, {"started": True})
                said = self.hosts.run(run["hosts"]) if fabric.started(run["hosts"]) else {host: {"cut": "it was ended"} for host in there}
                for host in there:
                    gave: dict[str, Any] = dict(said[host])
                    if host in self.beside:
                        gave["step"] = {**gave["step"], "jobs": ["Slurm job 7"]}
                    fabric.keep(host, {"started": True, **gave})
        finish(self.desk, self.case)
        run = read_run(last_run(self.desk.folder) / "bench.json")
        return {(each.check, each.host): each for each in run.verdicts if each.check.startswith("fabric_")}

    def _next(self) -> str:
        present = [host for host in self.case.hosts if host not in self.lost]
        case = BenchedFleet(**{**{name: getattr(self.case, name) for name in BenchedFleet.__slots__}, "now": NOW + self.late_s})
        facts = {host: {"address": f"10.0.0.{number}", "switch": "", "rack": ""} for number, host in enumerate(self.case.hosts)}
        return next_round(self.desk, case, present=present, facts=lambda: facts, at_once=self.at_once)


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., Bench]:
    """Return how to begin a bench of so many hosts with these steps, all of which have passed their own."""

    def begin(count: int, *steps: dict[str, Any], failed: str = "", jobs: str = "", **hosts: Any) -> Bench:
        data = yaml.safe_load(SHIPPED.read_text())
        data["tiers"] = {"wide": {"meaning": "several hosts", "budget_s": 1000, "steps": [PREFLIGHT, *steps]}}
        policy = tmp_path / "policy.yml"
        policy.write_text(yaml.safe_dump(data))
        desk = BenchStore(tmp_path / "bench")
        desk.begin(str(policy), "wide")
        names = tuple(f"n{number}" for number in range(count))
        for name in names:
            desk.keep_seen(
                name,
                {"due": "changed", "fingerprint": PRINT, "record": {}, "now": NOW, "gpus": 0},
            )
            record = {"check": "preflight_gpu_ecc", "host": name, "verdict": "fail" if name == failed else "pass", "started": NOW}
            step = {"name": "preflight", "code": 0, "error": "", "stdout": json.dumps({"verdicts": [record]}), "stderr": "", "results": []}
            desk.keep_measured(name, [{**step, "started": NOW, "seconds": 1.0, "jobs": ["job 7"] if name == jobs else []}], now=NOW)
        return Bench(desk, BenchedFleet("c", names, 20, str(policy), "wide", 10.0, NOW + 100), Hosts(**hosts))

    return begin


def outcomes(said: dict[tuple[str, str], Verdict], check: str) -> dict[str, str]:
    """Return the verdicts of a check by host."""
    return {host: verdict.verdict for (name, host), verdict in said.items() if name == check}


def test_healthy_hosts_pass_by_pairs_and_by_bisection(bench: Callable[..., Bench]) -> None:
    """Pairs that share nobody run at the same time; the whole fabric runs three times; the report says how many ran."""
    going = bench(6, PAIRS, FABRIC)
    said = going.go()

    assert [len(each) for each in going.rounds] == [3] * 5 + [3, 3] + [1] * 3
    assert all(len(hosts) == len(set(hosts)) for each in going.rounds for hosts in [[host for run in each for host in run]])
    assert set(outcomes(said, "fabric_pairs").values()) == {"pass"}
    assert set(outcomes(said, "fabric_bisection").values()) == {"pass"}
    assert said["fabric_pairs", "n0"].source == "15 pairs of 6 hosts"
    assert said["fabric_bisection", "n0"].source == "bisection of 6 hosts in 3 runs"
    assert said["fabric_bisection", "n0"].started == NOW
    assert len((last_run(going.desk.folder) / "fabric.jsonl").read_text().splitlines()) == 15 + 6 + 3


@pytest.mark.parametrize("fault", [{"slow": {"n4": 4.0}}, {"broken": frozenset({"n4"})}, {"wrong": frozenset({"n4"})}])
def test_a_bad_host_fails_and_nobody_else(bench: Callable[..., Bench], fault: dict[str, Any]) -> None:
    """Slow, broken or computing wrongly, by pairs and by bisection; only it is quarantined, with the reason of a run."""
    going = bench(8, PAIRS, FABRIC, **fault)
    said = going.go()
    decided = json.loads((going.desk.folder / "decisions.json").read_text())

    for check in ("fabric_pairs", "fabric_bisection"):
        assert {host for host, outcome in outcomes(said, check).items() if outcome == "fail"} == {"n4"}
        assert {host for host, outcome in outcomes(said, check).items() if outcome == "pass"} == set(going.case.hosts) - {"n4"}
    assert [record["host"] for record in decided["records"]] == ["n4"]
    assert "; " in said["fabric_pairs", "n4"].reason


def test_pairs_in_doubt_are_measured_once_more(bench: Callable[..., Bench]) -> None:
    """Those of the slow host, when all have run: each twice, everybody else once; what is known of it then rests on both runs."""
    going = bench(8, PAIRS, slow={"n4": 1.02})
    going.go()
    times = Counter(frozenset(hosts) for each in going.rounds for hosts in each)

    assert [len(each) for each in going.rounds] == [4] * 7 + [1] * 7
    assert {pair for pair, count in times.items() if count == 2} == {frozenset(("n4", host)) for host in going.case.hosts} - {
        frozenset(("n4",))
    }


def test_a_pair_that_fails_once_and_passes_then_is_a_path_in_doubt(bench: Callable[..., Bench]) -> None:
    """Its hosts pass, since they do so with all others."""
    going = bench(6, PAIRS)
    pair, real = {"n1", "n4"}, going.hosts.run

    def run(hosts: Sequence[str]) -> dict[str, dict[str, Any]]:
        first = set(hosts) == pair and not any(set(each) == pair for each in going.hosts.ran)
        going.hosts.broken = frozenset(pair if first else ())
        return real(hosts)

    going.hosts.run = run  # type: ignore[method-assign]
    said = going.go()
    path = next(verdict for (_, host), verdict in said.items() if "," in host)

    assert set(path.host.split(",")) == pair
    assert (path.verdict, path.reason.split(" (")[0]) == ("unknown", "unsteady: 1 of 2 runs failed")
    assert {host: outcome for host, outcome in outcomes(said, "fabric_pairs").items() if "," not in host} == dict.fromkeys(
        going.case.hosts, "pass"
    )


def test_a_pair_that_gave_no_answer_once_is_asked_again(bench: Callable[..., Bench]) -> None:
    """A port that was taken is nobody's fault, and the next run says how it is."""
    going = bench(6, PAIRS)
    going.before = lambda number: setattr(going.hosts, "hanging", frozenset({"n2"} if number <= 5 else ()))
    said = going.go()

    assert set(outcomes(said, "fabric_pairs").values()) == {"pass"}


def test_a_host_that_hangs_runs_is_unknown(bench: Callable[..., Bench]) -> None:
    """By both ways, and its partners are none the worse."""
    said = bench(6, PAIRS, FABRIC, hanging=frozenset({"n2"})).go()

    for check in ("fabric_pairs", "fabric_bisection"):
        assert outcomes(said, check) == {**dict.fromkeys(("n0", "n1", "n3", "n4", "n5"), "pass"), "n2": "unknown"}


@pytest.mark.parametrize("when", [2, 7, 9])
def test_a_host_that_is_lost_is_unknown_and_the_others_go_on(bench: Callable[..., Bench], when: int) -> None:
    """In the middle of pairs, of what is compared with, or of the bisection: it takes no further part, and nobody is blamed."""
    going = bench(6, PAIRS, FABRIC)
    going.before = lambda number: going.lost.add("n3") if number == when else None
    said = going.go()

    assert not any("n3" in hosts for each in going.rounds[when:] for hosts in each)
    assert said["fabric_bisection", "n3"].verdict == "unknown"
    assert said["fabric_bisection", "n3"].reason == LOST
    for check in ("fabric_pairs", "fabric_bisection"):
        assert {host: outcome for host, outcome in outcomes(said, check).items() if outcome != "pass"} == {"n3": "unknown"}


def test_a_host_that_takes_a_job_meanwhile_leaves(bench: Callable[..., Bench]) -> None:
    """It is not put under load, and is unknown; those who had started with it are ended, and go on in the next round."""
    going = bench(6, PAIRS)
    going.before = lambda number: going.busy.add("n3") if number == 3 else None
    said = going.go()

    assert outcomes(said, "fabric_pairs") == {**dict.fromkeys(("n0", "n1", "n2", "n4", "n5"), "pass"), "n3": "unknown"}
    assert said["fabric_pairs", "n3"].reason == "jobs run on it: Slurm job 7"


def test_a_job_that_starts_beside_a_run_spoils_that_run_alone(bench: Callable[..., Bench]) -> None:
    """The run is unknown although its program failed, its host leaves and is unknown, and the partner goes on with others."""
    going = bench(6, PAIRS, broken=frozenset({"n3"}))
    going.beside = {"n3"}
    said = going.go()
    ran = [json.loads(each) for each in (last_run(going.desk.folder) / "fabric.jsonl").read_text().splitlines()]

    assert outcomes(said, "fabric_pairs") == {**dict.fromkeys(("n0", "n1", "n2", "n4", "n5"), "pass"), "n3": "unknown"}
    assert said["fabric_pairs", "n3"].reason == "jobs run on it: Slurm job 7"
    assert [one["answer"] for one in ran if "n3" in one["hosts"]] == ["unknown"]


def test_who_did_not_pass_or_runs_jobs_takes_no_part(bench: Callable[..., Bench]) -> None:
    """The one is skipped, the other unknown, each with the reason; neither runs."""
    going = bench(8, PAIRS, failed="n1", jobs="n2")
    said = going.go()

    assert {host for each in going.rounds for hosts in each for host in hosts} == set(going.case.hosts) - {"n1", "n2"}
    assert said["fabric_pairs", "n1"].verdict == "skipped"
    assert said["fabric_pairs", "n1"].reason == "it did not pass its own steps: preflight_gpu_ecc"
    assert (said["fabric_pairs", "n2"].verdict, said["fabric_pairs", "n2"].reason) == ("unknown", "jobs run on it")


def test_one_host_is_no_fabric(bench: Callable[..., Bench]) -> None:
    """It is skipped with the reason, and nothing runs."""
    going = bench(2, PAIRS, FABRIC, failed="n1")
    said = going.go()

    assert going.rounds == []
    assert said["fabric_bisection", "n0"].verdict == "skipped"
    assert "1 host that is idle and passed its own steps is no fabric" in said["fabric_bisection", "n0"].reason


def test_few_hosts_work_and_their_speed_is_not_known(bench: Callable[..., Bench]) -> None:
    """Three hosts: nobody is accused of being slow, nobody passes either, and a policy that only warns of that lets them pass."""
    going = bench(3, PAIRS, FABRIC, slow={"n2": 10.0})
    said = going.go()
    decided = json.loads((going.desk.folder / "decisions.json").read_text())

    for check in ("fabric_pairs", "fabric_bisection"):
        assert set(outcomes(said, check).values()) == {"unknown"}
    assert "it works with 2 partners" in said["fabric_pairs", "n0"].reason
    assert sorted(decided["passes"]) == ["n0", "n1", "n2"]


def test_three_hosts_prove_who_breaks_runs(bench: Callable[..., Bench]) -> None:
    """It fails with two partners who work with each other."""
    said = bench(3, PAIRS, broken=frozenset({"n2"})).go()

    assert outcomes(said, "fabric_pairs") == {"n0": "unknown", "n1": "unknown", "n2": "fail"}


def test_four_hosts_prove_by_bisection_who_is_far_slower(bench: Callable[..., Bench]) -> None:
    """Six pairs are enough to hold groups against; the slow one fails with three partners in turn, who are fast without it."""
    said = bench(4, FABRIC, slow={"n2": 10.0}).go()

    assert outcomes(said, "fabric_bisection") == {"n0": "pass", "n1": "pass", "n2": "fail", "n3": "pass"}


def test_when_the_time_is_over_the_rest_is_unknown(bench: Callable[..., Bench]) -> None:
    """What had run counts; who had no run yet is unknown with that reason, and nobody fails for it."""
    going = bench(8, {**PAIRS, "inside": 1}, FABRIC)
    going.before = lambda number: setattr(going, "late_s", 1001.0) if number == 2 else None
    said = going.go()

    assert len(going.rounds) == 2
    assert "fail" not in {each.verdict for each in said.values()}
    assert set(outcomes(said, "fabric_bisection").values()) == {"unknown"}
    assert said["fabric_bisection", "n0"].reason.startswith("the tier's time (1000 s) was over")


def test_a_course_that_was_cut_short_accuses_nobody(bench: Callable[..., Bench]) -> None:
    """Where the rounds end before the search does, what is missing is unknown."""
    said = bench(8, FABRIC, broken=frozenset({"n4"})).go(most=4)

    assert {each.verdict for each in said.values()} <= {"unknown", "pass"}
    assert "unknown" in outcomes(said, "fabric_bisection").values()


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (2, 1), (5, 2), (0, 4)])
def test_hosts_that_share_processors_run_few_at_a_time(bench: Callable[..., Bench], at_once: int, most: int) -> None:
    """A pair needs two; no pair is left out for it."""
    going = bench(8, PAIRS)
    going.at_once = at_once
    going.go()

    assert max(len(each) for each in going.rounds) == most
    assert sum(len(each) for each in going.rounds) == 28


def test_each_host_is_told_its_place_in_the_group(bench: Callable[..., Bench]) -> None:
    """Rank, meeting place and port are those of its group; the port is another one each time, or the one that is stated."""
    going = bench(4, PAIRS)
    fabric, tier = FabricStore(going.desk), read_policy(going.case.policy_file).tiers["wide"]
    going._next()
    (one, other), _ = [run["hosts"] for run in fabric.state()["runs"]]
    asked = BenchRequest("wide", "", "primus-cli", "", "", force=True)
    parts = {host: fabric.words(host, asked, tier, port=0) or {} for host in (one, other)}
    told = {host: part["step"]["argv"] for host, part in parts.items()}
    shared = set(told[one]) & set(told[other])
    stated = fabric.words(one, BenchRequest("wide", "", "primus-cli", "img", "", force=True), tier, port=29400) or {}

    assert told[one][:6] == ["primus-cli", "--output", "{run}/out", "direct", "--nnodes=2", "--node-rank=0"]
    assert told[one][9:12] == ["--", "benchmark", "collectives"]
    assert "--node-rank=1" in told[other]
    assert "--master-addr=10.0.0.0" in shared
    assert any(word.startswith("--master-port=") for word in shared)
    assert parts[one]["step"]["timeout_s"] == 120
    assert stated["step"]["argv"][3:6] == ["container", "--image", "img"]
    assert "--master-port=29400" in stated["step"]["argv"]
    assert fabric.words("elsewhere", asked, tier, port=0) is None


def test_a_group_has_started_when_all_of_it_has_in_this_round(bench: Callable[..., Bench]) -> None:
    """What a host said in an earlier round does not count."""
    going = bench(4, PAIRS)
    fabric = FabricStore(going.desk)
    going._next()
    before = fabric.started(["n0", "n1"])
    fabric.keep("n0", {"started": True})
    one = fabric.started(["n0", "n1"])
    fabric.keep("n1", {"started": True})
    both = fabric.started(["n0", "n1"])
    going._next()

    assert (before, one, both) == (False, False, True)
    assert not fabric.started(["n0", "n1"])


def test_places_are_switches_else_racks_else_subnets() -> None:
    """As Slurm's topology has them."""
    plain = {"switch": "", "rack": "", "address": "10.0.1.7"}

    assert places_of({"a": {**plain, "switch": "s1", "rack": "r1"}, "b": plain}) == {"a": "s1", "b": ""}
    assert places_of({"a": {**plain, "rack": "r1"}, "b": {**plain, "rack": "r2"}}) == {"a": "r1", "b": "r2"}
    assert places_of({"a": plain, "b": {**plain, "address": "10.0.2.7"}, "c": {**plain, "address": "gpu3"}}) == {
        "a": "10.0.1.0/24",
        "b": "10.0.2.0/24",
        "c": "unplaced",
    }
