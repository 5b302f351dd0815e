"""From the hosts' answers to decisions, history and reports, with the real evaluation, gate and policy."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from primus_bootstrap.bench.finalize import finish, request_reruns
from primus_bootstrap.bench.judging.evaluation import BenchedFleet
from primus_bootstrap.bench.report.bench_report import read_run
from primus_bootstrap.bench.results.step_commands import BenchRequest, remaining_s, steps_for_host
from primus_bootstrap.bench.results.store import BenchStore
from primus_bootstrap.core.errors import RunError, UsageError

NOW = 1_795_350_000.0
PRINT = {"driver": "6.10", "firmware": "1", "kernel": "6.1", "profile": "abc"}
PENDING = {"owner": "primus-bench", "reason": "bench pending", "time": NOW - 100, "clock": "n1"}
SAMPLES = [100.0, 100.2, 99.8, 100.1, 99.9, 100.0, 100.1, 99.9]


def request(**other: Any) -> BenchRequest:
    """Return how hosts are measured."""
    given = {"tier": "checks", "policy_file": "", "program": "primus-cli", "image": "", "storage_folder": "", "force": False}
    return BenchRequest(**{**given, **other})


def fleet(*hosts: str, **other: Any) -> BenchedFleet:
    """Return the hosts of a bench."""
    given = {"cluster": "c", "gpu_nodes": 20, "policy_file": "", "tier": "checks", "limit_percent": 10.0, "now": NOW}
    return BenchedFleet(hosts=hosts, **{**given, **other})


@pytest.fixture
def store(tmp_path: Path) -> BenchStore:
    """Return the store of a started bench."""
    made = BenchStore(tmp_path / "bench")
    made.begin("", "checks")
    return made


def facts(store: BenchStore, host: str, *, due: str = "it has never passed", record: dict[str, Any] | None = None, gpus: int = 0) -> None:
    """Save the facts of a host."""
    kept = {**record, "clock": host} if record else {}
    store.save_facts(host, {"due": due, "fingerprint": PRINT, "record": kept, "now": NOW - 60, "gpus": gpus})


def preflight(outcome: str, check: str = "preflight_gpu_ecc", **other: Any) -> dict[str, Any]:
    """Return the output of the node checks."""
    record = {
        "check": check,
        "host": "its-own-name",
        "verdict": outcome,
        "reason": "" if outcome == "pass" else "broken",
        "started": NOW - 30,
    }
    return step("preflight", stdout=json.dumps({"verdicts": [record]}), **other)


def step(name: str, **other: Any) -> dict[str, Any]:
    """Return the output of a step."""
    given = {"name": name, "code": 0, "error": "", "stdout": "", "stderr": "", "results": [], "seconds": 1.0, "jobs": []}
    return {**given, "started": NOW - 30, **other}


def gemm(host: str, **other: Any) -> dict[str, Any]:
    """Return a step with one result."""
    samples = SAMPLES
    line = {
        "schema": "primus.result/1", "benchmark": "gemm", "metric": "tflop_per_s", "value": sorted(samples)[len(samples) // 2],
        "unit": "TFLOP/s", "better": "higher", "sizes": {"m": 64}, "host": f"{host}.local", "device": "", "model": "cpu", "serial": "",
        "ranks": 1, "repeats": len(samples), "samples": samples, "p95": max(samples), "correct": True, "error": "",
        "versions": {"python": "3.11", "torch": "2.13.0", "cuda": None, "rocm": None, "driver": None, "git_commit": None},
        "time": "2026-11-22T12:19:40+00:00", "seconds": 1.0, "options": {},
    }  # fmt: skip
    return step("gemm", results=[json.dumps({**line, **other})])


def steps(store: BenchStore, host: str, given: BenchRequest, round_: int = 0) -> list[dict[str, Any]]:
    """Return the steps that a host runs in a round."""
    return steps_for_host(store.answers(host), given, round_=round_, reruns=store.reruns(host))


def decisions(store: BenchStore) -> dict[str, Any]:
    """Return the saved decisions."""
    return dict(json.loads((store.folder / "decisions.json").read_text()))


def test_a_tier_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """The fix names the tiers."""
    with pytest.raises(UsageError) as caught:
        BenchStore(tmp_path).begin("", "quik")
    assert "no such tier: quik" in str(caught.value)
    assert "none, checks, quick, standard, deep" in caught.value.fix


def test_a_host_runs_nothing_if_no_bench_is_due(store: BenchStore) -> None:
    """Unless the bench is forced."""
    facts(store, "n1", due="")

    assert steps(store, "n1", request(), 0) == []
    assert [one["name"] for one in steps(store, "n1", request(force=True), 0)] == ["preflight"]
    assert steps(store, "n1", request(force=True, tier="none"), 0) == []


def test_a_host_with_gpus_measures_them_or_nothing(store: BenchStore) -> None:
    """It never falls back to the CPU; storage is measured if a folder is configured."""
    facts(store, "n1", gpus=8)
    facts(store, "n2")
    words = {one["name"]: one["argv"] for one in steps(store, "n1", request(tier="deep"), 0)}
    on_cpu = {one["name"]: one["argv"] for one in steps(store, "n2", request(tier="deep", storage_folder="/jfs/b", image="img"), 0)}

    assert words["gemm"][-2:] == ["--device", "cuda"]
    assert "storage" not in words
    assert on_cpu["storage"][-2:] == ["--folder", "/jfs/b"]
    assert on_cpu["gemm"][:6] == ["primus-cli", "--output", "{run}/out", "container", "--image", "img"]
    assert on_cpu["gemm"][-2:] == ["--device", "auto"]


def test_new_hosts_that_pass_are_released(store: BenchStore) -> None:
    """The report names the hosts as hosts.yaml does, and is the last report."""
    for host in ("n1", "n2"):
        facts(store, host, record=PENDING)
        store.add_round(host, [preflight("pass")], now=NOW - 20)
    shown = finish(store, fleet("n1", "n2"))
    run = read_run(store.last_report() / "bench.json")

    assert (decisions(store)["released"], decisions(store)["records"], decisions(store)["ours"]) == (["n1", "n2"], [], [])
    assert decisions(store)["passes"]["n2"] == {
        "schema": "primus.bench-pass/1", "host": "n2", "tier": "checks", "time": NOW - 20, "fingerprint": PRINT,
    }  # fmt: skip
    assert [(verdict.check, verdict.host, verdict.verdict) for verdict in shown] == [("bench", "n1", "pass"), ("bench", "n2", "pass")]
    assert dict(run.hosts) == {"n1": "pass", "n2": "pass"}
    assert {path.name for path in store.last_report().iterdir()} == {"bench.json", "bench.html", "junit.xml"}


def test_a_failing_host_is_quarantined_with_its_verdicts_and_its_own_time(store: BenchStore) -> None:
    """A check that the policy only warns about quarantines no host."""
    facts(store, "n1", record=PENDING)
    facts(store, "n2", due="changed since the last pass: driver")
    facts(store, "n3", due="changed since the last pass: driver")
    store.add_round("n1", [preflight("pass")], now=NOW - 20)
    store.add_round("n2", [preflight("fail")], now=NOW - 20)
    store.add_round("n3", [preflight("fail", "preflight_swap")], now=NOW - 20)
    shown = finish(store, fleet("n1", "n2", "n3"))
    (record,) = decisions(store)["records"]

    assert (record["host"], record["owner"], record["time"], record["clock"]) == ("n2", "primus-bench", NOW - 20, "n2")
    assert [verdict["check"] for verdict in record["verdicts"]] == ["preflight_gpu_ecc"]
    assert sorted(decisions(store)["passes"]) == ["n1", "n3"]
    assert decisions(store)["ours"] == ["n2"]
    assert {(verdict.check, verdict.host): verdict.verdict for verdict in shown} == {
        ("bench", "n1"): "pass", ("bench", "n2"): "fail", ("bench", "n3"): "pass", ("preflight_gpu_ecc", "n2"): "fail",
    }  # fmt: skip


def test_too_many_failures_open_the_breaker(store: BenchStore) -> None:
    """No host is quarantined then, nor by the next bench, until the breaker is reset."""
    hosts = [f"n{number}" for number in range(5)]
    for now in (NOW, NOW + 1):
        store.begin("", "checks")
        for host in hosts:
            facts(store, host, due="changed")
            store.add_round(host, [preflight("fail" if host in hosts[:3] else "pass")], now=NOW - 20)
        finish(store, fleet(*hosts, now=now))
        assert decisions(store)["records"] == []
        assert store.breaker() is not None
    assert read_run(store.last_report() / "bench.json").breaker is not None


def test_another_owners_quarantine_is_left(store: BenchStore) -> None:
    """Even if the host passes."""
    facts(store, "n1", due="it has never passed", record={"owner": "ada", "reason": "fan", "time": NOW - 100})
    store.add_round("n1", [preflight("pass")], now=NOW - 20)
    finish(store, fleet("n1"))

    assert (decisions(store)["released"], decisions(store)["records"]) == ([], [])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (step("preflight", error="no answer within 240 s", code=-1), "no answer within 240 s"),
        (step("preflight", stdout="garbage"), "exit code 0; garbage"),
        (step("preflight", stdout='{"verdicts": []}'), "exit code 0"),
        (step("gemm", code=1, stderr="No module named torch"), "exit code 1; No module named torch"),
        (step("gemm", code=0), "exit code 0"),
    ],
)
def test_a_step_without_an_answer_keeps_a_new_host_out(store: BenchStore, given: dict[str, Any], says: str) -> None:
    """The verdict has the output of the step; passes of other checks do not change it."""
    facts(store, "n1", record=PENDING)
    others = [preflight("pass")] if given["name"] == "gemm" else []
    store.add_round("n1", [*others, given], now=NOW - 20)
    shown = finish(store, fleet("n1", tier="quick" if given["name"] == "gemm" else "checks"))

    assert (decisions(store)["released"], decisions(store)["passes"]) == ([], {})
    assert shown[0].verdict == "unknown"
    assert any(says in verdict.reason for verdict in shown)


def test_a_host_that_is_lost_during_the_bench_is_unknown(store: BenchStore) -> None:
    """Before or while it measured; the other hosts are evaluated."""
    facts(store, "n1", record=PENDING)
    store.add_round("n1", [preflight("pass")], now=NOW - 20)
    facts(store, "n2", record=PENDING)
    store.mark_requested("n2")
    shown = finish(store, fleet("n1", "n2", "n3"))

    assert decisions(store)["released"] == ["n1"]
    assert {verdict.host: verdict.verdict for verdict in shown if verdict.check == "bench"} == {
        "n1": "pass",
        "n2": "unknown",
        "n3": "unknown",
    }


def test_if_nothing_was_due_nothing_is_decided(store: BenchStore) -> None:
    """There is no report and no history."""
    facts(store, "n1", due="")
    shown = finish(store, fleet("n1"))

    assert shown == ()
    assert decisions(store)["passes"] == {}
    assert not (store.folder / "runs").exists()
    assert not (store.folder / "history.jsonl").exists()


def test_new_hosts_without_anything_to_compare_with_join(store: BenchStore) -> None:
    """The first two hosts of a model without a floor are released; an error keeps a host out."""
    for host in ("n1", "n2", "n3"):
        facts(store, host, record=PENDING)
    extra: dict[str, dict[str, Any]] = {
        "n3": {"value": None, "samples": [], "p95": None, "repeats": 0, "correct": None, "error": "out of memory"}
    }
    for host in ("n1", "n2", "n3"):
        bandwidth = {"benchmark": "memory_bandwidth", "metric": "gb_per_s", "unit": "GB/s"}
        steps = [preflight("pass"), gemm(host, **extra.get(host, {})), gemm(host, **bandwidth)]
        store.add_round(host, steps, now=NOW - 20)
    finish(store, fleet("n1", "n2", "n3", tier="quick", now=NOW + 1e6))

    assert decisions(store)["released"] == ["n1", "n2"]
    assert len((store.folder / "history.jsonl").read_text().splitlines()) >= 2


def test_an_error_runs_again(store: BenchStore) -> None:
    """Only that benchmark, on that host."""
    facts(store, "n1", record=PENDING)
    facts(store, "n2", record=PENDING)
    failed: dict[str, Any] = {"value": None, "samples": [], "p95": None, "repeats": 0, "correct": None, "error": "out of memory"}
    store.add_round("n1", [preflight("pass"), gemm("n1")], now=NOW - 20)
    store.add_round("n2", [preflight("pass"), gemm("n2", **failed)], now=NOW - 20)
    count = request_reruns(store, fleet("n1", "n2", tier="quick"))

    assert count == 1
    assert [one["name"] for one in steps(store, "n2", request(tier="quick"), 1)] == ["gemm"]
    assert steps(store, "n1", request(tier="quick"), 1) == []


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_step_beside_jobs_is_unknown(store: BenchStore, *, spoilt: bool) -> None:
    """Whether it was skipped or measured a quarter of the speed; it is no peer of others either."""
    hosts = [f"n{number}" for number in range(8)]
    samples = [sample / 4 for sample in SAMPLES]
    beside = gemm("n0", samples=samples, value=sorted(samples)[4]) if spoilt else step("gemm", code=-1, error="it was left out")
    for host in hosts:
        facts(store, host, due="changed since the last pass: driver")
        steps = {"n0": {**beside, "jobs": ["Slurm job 7"]}}
        store.add_round(host, [preflight("pass"), steps.get(host) or gemm(host)], now=NOW - 20)
    shown = finish(store, fleet(*hosts, tier="quick"))
    run = read_run(store.last_report() / "bench.json")

    assert (decisions(store)["records"], "n0" in decisions(store)["passes"]) == ([], False)
    assert [(verdict.check, verdict.verdict, verdict.found) for verdict in shown if verdict.host == "n0"] == [
        ("bench", "unknown", ""),
        ("bench_gemm", "unknown", "Slurm job 7"),
    ]
    assert "jobs run on it (Slurm job 7): " in next(verdict.reason for verdict in shown if verdict.check == "bench_gemm")
    assert {verdict.host: verdict.verdict for verdict in run.verdicts if verdict.check == "bench_gemm"} == {
        "n0": "unknown", **dict.fromkeys(hosts[1:], "pass"),
    }  # fmt: skip


def test_a_host_with_jobs_has_no_reruns(store: BenchStore) -> None:
    """Another host has."""
    failed: dict[str, Any] = {"value": None, "samples": [], "p95": None, "repeats": 0, "correct": None, "error": "out of memory"}
    for host, jobs in (("n1", ["Slurm job 7"]), ("n2", [])):
        facts(store, host)
        store.add_round(host, [{**preflight("pass"), "jobs": jobs}, gemm(host, **failed)], now=NOW - 20)
    round_ = request_reruns(store, fleet("n1", "n2", tier="quick"))

    assert round_ == 1
    assert [len(steps(store, host, request(tier="quick"), 1)) for host in ("n1", "n2")] == [0, 1]


def test_after_the_time_budget_there_are_no_reruns(store: BenchStore) -> None:
    """The time of all steps of a host counts."""
    failed: dict[str, Any] = {"value": None, "samples": [], "p95": None, "repeats": 0, "correct": None, "error": "out of memory"}
    for host, seconds in (("n1", 20.0), ("n2", 900.0)):
        facts(store, host)
        store.add_round(host, [preflight("pass"), {**gemm(host, **failed), "seconds": seconds}], now=NOW - 20)
    request_reruns(store, fleet("n1", "n2", tier="quick"))
    quick = request(tier="quick")

    assert [remaining_s(store.answers(host), quick) for host in ("n1", "n2")] == [879.0, -1.0]
    assert [len(steps(store, host, quick, 1)) for host in ("n1", "n2")] == [1, 0]


def test_the_trial_training_has_the_options_of_the_inventory(store: BenchStore) -> None:
    """They replace the policy's options; empty ones and other steps are unchanged."""
    facts(store, "n1", gpus=8)
    trial = {"preset": "llama-3.1-8b", "strategy": "", "tensor": 2, "settings": ["train.micro_batch=1", "compute.compile=true"]}
    usual = steps(store, "n1", request(tier="deep"), 0)
    stated = steps(store, "n1", request(tier="deep", trial=trial), 0)
    words = stated[-1]["argv"][stated[-1]["argv"].index("trial") + 1 :]

    assert usual[:-1] == stated[:-1]
    assert words[:6] == ["--preset", "llama-3.1-8b", "--tensor", "2", "--settings", "train.micro_batch=1,compute.compile=true"]
    assert words[6:] == usual[-1]["argv"][usual[-1]["argv"].index("trial") + 1 :]


def test_earlier_decisions_are_not_carried_out_again(store: BenchStore) -> None:
    """A new bench removes them, but remembers the quarantined hosts; a read-only start removes nothing."""
    facts(store, "n1", due="changed")
    facts(store, "n2", due="changed")
    store.add_round("n1", [preflight("fail")], now=NOW - 20)
    store.add_round("n2", [preflight("pass")], now=NOW - 20)
    finish(store, fleet("n1", "n2"))
    store.begin("", "checks", read_only=True)
    before = decisions(store)
    store.begin("", "checks")

    assert (len(before["records"]), list(before["passes"])) == (1, ["n2"])
    assert {name: decisions(store)[name] for name in ("records", "released", "passes", "ours")} == {
        "records": [], "released": [], "passes": {}, "ours": ["n1"],
    }  # fmt: skip


TORN = [b"", b'{"schema": "primus.bench-deci', b"[]", b'{"ours": "\xff"}']


@pytest.mark.parametrize("content", TORN)
def test_damaged_decisions_stop_the_bench(store: BenchStore, content: bytes) -> None:
    """A file that a power loss damaged is an error with a fix, before anything is removed; it is left as it is."""
    store.save_decisions(quarantined=["n1"])
    facts(store, "n2", due="changed")
    store.add_round("n2", [preflight("pass")], now=NOW - 20)
    path = store.folder / "decisions.json"
    path.write_bytes(content)

    for step_of_a_bench in (lambda: store.begin("", "checks"), lambda: finish(store, fleet("n2"))):
        with pytest.raises(RunError, match=r"decisions\.json is damaged") as caught:
            step_of_a_bench()
        assert f"remove {path}" in caught.value.fix
    assert path.read_bytes() == content
    assert store.answers("n2").rounds


@pytest.mark.parametrize("content", TORN)
def test_a_damaged_breaker_is_open(store: BenchStore, content: bytes) -> None:
    """No host is quarantined until an operator resets it."""
    (store.folder / "breaker.json").write_bytes(content)

    breaker = store.breaker()

    assert breaker is not None
    assert "cannot be read" in breaker.reason


@pytest.mark.parametrize("content", TORN)
def test_a_host_with_a_damaged_file_is_lost(store: BenchStore, content: bytes) -> None:
    """It does not pass, and the other hosts are evaluated."""
    for host in ("n1", "n2"):
        facts(store, host, due="changed")
        store.add_round(host, [preflight("pass")], now=NOW - 20)
    (store.folder / "incoming" / "n1.json").write_bytes(content)

    shown = {(verdict.check, verdict.host): verdict.verdict for verdict in finish(store, fleet("n1", "n2"))}

    assert (shown["bench", "n1"], shown["bench", "n2"]) == ("unknown", "pass")


def test_decisions_are_on_disk_before_the_bench_goes_on(store: BenchStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """They survive a power loss."""
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))

    store.save_decisions(quarantined=["n1"])

    assert [name.startswith(".decisions.json.") for name in synced] == [True, False]
