"""The evaluation of real result lines becomes a complete report."""

from __future__ import annotations

import json

from primus_bootstrap.bench.judging.floors import load_floors
from primus_bootstrap.bench.judging.history_records import new_records
from primus_bootstrap.bench.judging.verdicts import evaluate_results
from primus_bootstrap.bench.quarantine.decisions import GateResult
from primus_bootstrap.bench.report.bench_report import run_from_json
from primus_bootstrap.bench.report.build import build_report
from primus_bootstrap.bench.report.html_page import html_text
from primus_bootstrap.bench.report.rows import findings, subject, summary
from primus_bootstrap.bench.results.history import make_history
from primus_bootstrap.bench.results.reader import parse_lines
from tests.unit.bench_report_rig import SERIES, STARTED, Page, expected_cells


def _line(host: str, device: int, tflop_per_s: float) -> bytes:
    """Return a result line of the GEMM benchmark."""
    samples = [tflop_per_s * (1 + 0.001 * (index - 10)) for index in range(21)]
    data = {
        "schema": "primus.result/1",
        "benchmark": "gemm",
        "metric": "tflop_per_s",
        "value": tflop_per_s,
        "unit": "TFLOP/s",
        "better": "higher",
        "sizes": {"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"},
        "host": host,
        "device": str(device),
        "model": "AMD Instinct MI300X",
        "serial": f"{host}-{device}",
        "ranks": 1,
        "repeats": 21,
        "samples": samples,
        "p95": tflop_per_s,
        "correct": True,
        "error": "",
        "versions": {"torch": "2.13", "cuda": None, "rocm": "7.0", "driver": "6.14"},
        "time": "2027-01-15T08:00:00Z",
        "seconds": 2.0,
    }
    return json.dumps(data).encode()


def test_an_evaluation_becomes_a_report() -> None:
    """Values, floors, versions, directions and histories are those of the evaluation, and the page shows its verdicts."""
    lines = [_line(f"node{host}", device, 380.0 if (host, device) == (3, 2) else 620.0 + host) for host in range(8) for device in range(4)]
    read = parse_lines([*lines, b"{torn"], name="results.jsonl", host="node1")
    hosts = [f"node{host}" for host in range(9)]
    floors = load_floors()
    first = evaluate_results(read.results, floors=floors, history=make_history([]), hosts=hosts)
    history = make_history(new_records(first, {}, time=STARTED - 1000))
    evaluation = evaluate_results(read.results, floors=floors, history=history, hosts=hosts, others=read.problems)
    gate = GateResult((), None)
    run = build_report(cluster="lab", tier="quick", now=STARTED, hosts=evaluation.hosts, evaluation=evaluation, gate=gate, history=history)
    floor = floors.find(read.results[0].series, "AMD Instinct MI300X")

    assert floor
    assert {(value.series, value.better, value.stack) for value in run.values} == {(SERIES, "higher", "torch 2.13, rocm 7.0, driver 6.14")}
    assert {value.floor for value in run.values} == {floor.value}
    assert len(run.history) == len(run.values) == 32
    assert all(subject(verdict) == SERIES for verdict in run.verdicts if verdict.device)
    assert [verdict.verdict for verdict in findings(run)[0].places] == ["fail"]
    assert {finding.check for finding in findings(run)} == {"bench_gemm", "bench_results"}
    assert summary(run).startswith("bench lab, tier quick: 1 fail, 2 unknown, 6 pass")
    assert Page(html_text(run)).cells == expected_cells(run.verdicts)
    assert run_from_json(json.loads(json.dumps(run.to_json()))) == run
