"""The evaluation reads the real output of benchmarks, node checks and the module of the role `bench`."""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from primus_bootstrap.bench.fabric.group_runs import METRIC
from primus_bootstrap.bench.finalize import finish, request_reruns
from primus_bootstrap.bench.judging.evaluation import BenchedFleet, read_step
from primus_bootstrap.bench.judging.judging_settings import JudgingSettings
from primus_bootstrap.bench.quarantine.policy import BENCHMARKS, GROUP_BENCHMARKS
from primus_bootstrap.bench.results.host_answers import StepOutput
from primus_bootstrap.bench.results.reader import MAX_SAMPLES, parse_lines
from primus_bootstrap.bench.results.step_commands import BenchRequest, steps_for_host
from primus_bootstrap.bench.results.store import BenchStore
from primus_bootstrap.core.structured import read
from tests.integration.test_launch_direct import needs_torch
from tests.unit.bench_fleet_rig import STACK, Fleet
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.bench.results.reader import Result

NODE = load_role_module("bench", "bench_node")
RECORD = load_role_module("quarantine", "quarantine_record")
BENCHES = content.content_root() / "workloads" / "bench"
SHORT = ("--device=cpu", "--repeats=5", "--warm-up=1", "--timeout-s=100")
SMALL = {
    "gemm": ("--shapes=64x48x32", "--dtypes=fp32,bf16"),
    "memory_bandwidth": ("--array-mib=1",),
    "launch_overhead": ("--operations=20",),
}
REQUEST = BenchRequest("quick", "", "primus-cli", "", "", force=False)
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()


def steps(host: str, *names: str) -> list[dict[str, Any]]:
    """Return these benchmarks as steps for the module."""
    argv = {name: [sys.executable, str(BENCHES / f"{name}.py"), *SMALL[name], *SHORT] for name in names}
    environment = {"RUN_DIR": ".", "OMP_NUM_THREADS": "1", "PRIMUS_NODE": host}
    return [{"name": name, "argv": argv[name], "timeout_s": 200, "alone": True, "environment": environment} for name in names]


@needs_torch
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", SMALL)
def test_the_evaluation_reads_what_a_benchmark_writes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module runs the real program; each line is a result with a value, samples and versions."""
    monkeypatch.setattr(NODE, "running_jobs", list)
    (step,) = NODE.measure(steps("n1", name), tmp_path)
    reading = parse_lines([line.encode() for line in step["results"]], name=name)
    results, verdicts = read_step("n1", read(StepOutput, step))

    assert (step["code"], step["error"]) == (0, ""), step
    assert reading.problems == ()
    assert {result.series.benchmark for result in reading.results} == {name}
    assert all(result.value and len(result.samples) == result.repeats == 5 and result.stack[0] for result in reading.results)
    assert all(result.correct is not False and result.started > NOW for result in reading.results)
    assert (verdicts, {result.host for result in results}, len(results)) == ([], {"n1"}, len(step["results"]))


def test_a_host_without_primus_cli_has_a_fix_that_installs_it(tmp_path: Path) -> None:
    """A bench before the first apply is unknown."""
    requested = [{"name": "preflight", "argv": ["/nowhere/primus-cli", "preflight"], "timeout_s": 20, "alone": False, "environment": {}}]
    (step,) = NODE.measure(requested, tmp_path)
    (verdict,) = read_step("n1", read(StepOutput, step))[1]

    assert verdict.verdict == "unknown"
    assert verdict.fix == "install primus-cli on the host: primus-bootstrap apply hosts.yaml --phase gpu"


def test_only_programs_that_measure_a_bus_bandwidth_run_over_several_hosts() -> None:
    """GROUP_BENCHMARKS lists the programs that measure the bus bandwidth."""
    measuring = tuple(name for name in BENCHMARKS if f'"{METRIC}"' in (BENCHES / f"{name}.py").read_text(encoding="utf-8"))

    assert measuring == GROUP_BENCHMARKS


def host_facts(root: Path) -> dict[str, Any]:
    """Return the facts of a host with the fingerprint of a sample tree."""
    return {"due": "it has never passed", "fingerprint": NODE.fingerprint(root), "record": {}, "now": NOW, "gpus": 0}


def preflight(host: str) -> dict[str, Any]:
    """Return node checks that pass, as the module returns them."""
    output = {"verdicts": [{"check": "preflight_gpus", "host": host, "verdict": "pass", "started": NOW}]}
    step = {"name": "preflight", "code": 0, "error": "", "stderr": "", "results": [], "started": NOW, "seconds": 1.0, "jobs": []}
    return {**step, "stdout": json.dumps(output)}


def test_a_pass_note_decides_whether_the_next_bench_is_due(tmp_path: Path) -> None:
    """After a pass no bench is due until the fingerprint changes or a longer tier is requested."""
    root, store, note = tmp_path / "host", BenchStore(tmp_path / "bench"), tmp_path / "passed.json"
    for name, text in {"proc/sys/kernel/osrelease": "6.1.0\n", "sys/module/amdgpu/version": "6.10\n"}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    tiers = store.begin("", "checks")
    store.save_facts("n1", host_facts(root))
    store.add_round("n1", [preflight("n1")], now=NOW + 2)
    finish(store, BenchedFleet("c", ("n1",), 20, "", "checks", 10.0, NOW + 9))
    before = NODE.bench_reason(NODE.read_json(note), NODE.fingerprint(root), "checks", tiers)
    RECORD.write_record(note, (store.read("decisions.json") or {})["passes"]["n1"])
    passed = NODE.read_json(note)
    same, higher = (NODE.bench_reason(passed, NODE.fingerprint(root), tier, tiers) for tier in ("checks", "quick"))
    (root / "sys/module/amdgpu/version").write_text("6.11\n")

    assert before == "it has never passed"
    assert (same, higher) == ("", "the last pass was of the tier checks")
    assert NODE.bench_reason(passed, NODE.fingerprint(root), "checks", tiers) == "changed since the last pass: driver"


def as_step(result: Result) -> dict[str, Any]:
    """Return a step with this result in the format of a benchmark."""
    versions = {**dict(zip(("torch", "cuda", "rocm", "driver"), STACK, strict=True)), "python": "3.11", "git_commit": None}
    line = {
        "schema": "primus.result/1", "benchmark": "gemm", "metric": result.series.metric, "value": result.value, "unit": result.unit,
        "better": result.better, "sizes": json.loads(result.series.sizes), "host": result.host, "device": "", "model": result.model,
        "serial": result.serial, "ranks": 1, "repeats": result.repeats, "samples": result.samples, "p95": None, "correct": True,
        "error": "", "versions": versions, "time": datetime.fromtimestamp(result.started, UTC).isoformat(), "seconds": 1.0, "options": {},
    }  # fmt: skip
    step = {"name": "gemm", "code": 0, "error": "", "stdout": "", "stderr": "", "started": result.started, "seconds": 1.0, "jobs": []}
    return {**step, "results": [json.dumps(line)]}


@pytest.mark.parametrize("seed", range(4))
def test_the_statistics_of_the_perf_test_equal_those_of_the_role(seed: int, tmp_path: Path) -> None:
    """The loop of tests/perf and the store give the same verdicts for the same fleet after the same number of rounds."""
    fleets = [Fleet(random.Random(seed), 32, bad=2, slowdown=0.02, sigma=0.01) for _ in range(2)]  # noqa: S311 - no secret
    expected = fleets[0].bench(JudgingSettings())[1]
    store, fleet = BenchStore(tmp_path / "bench"), fleets[1]
    benched = BenchedFleet("c", tuple(fleet.names), 1000, "", "quick", 10.0, NOW + 1e6)
    store.begin("", "quick")
    for host in fleet.names:
        store.save_facts(host, host_facts(tmp_path))
        store.add_round(host, [preflight(host), as_step(fleet.measure(host, started=NOW))], now=NOW + 2)
    rounds: list[int] = []
    while len(rounds) <= JudgingSettings().max_rounds and (round_ := request_reruns(store, benched)):
        rounds.append(round_)
        for host in json.loads((store.folder / "reruns.json").read_text())["hosts"]:
            (step,) = steps_for_host(store.answers(host), REQUEST, round_=round_, reruns=store.reruns(host))
            repeats = int(step["argv"][step["argv"].index("--repeats") + 1])
            store.add_round(host, [as_step(fleet.measure(host, repeats=repeats, started=NOW + round_))], now=NOW + 2 + round_)
    finish(store, benched)
    verdicts = json.loads(next(store.folder.glob("runs/*/bench.json")).read_text())["verdicts"]

    assert rounds == list(range(1, JudgingSettings().max_rounds + 1))
    assert {item["host"]: item["verdict"] for item in verdicts if item["check"] == "bench_gemm"} == expected.hosts
    assert JudgingSettings().max_repeats <= MAX_SAMPLES
