"""What judging says of real lines of results is what the reports show: producer and consumer meet."""

from __future__ import annotations

import json

import pytest

from primus_bootstrap.bench.report.bench_report import BenchRun, run_from_json
from primus_bootstrap.bench.report.html_page import html_text
from primus_bootstrap.bench.report.report_input import STACK, report_history, report_values
from primus_bootstrap.bench.report.rows import findings, subject, summary
from tests.unit.bench_report_rig import SERIES, STARTED, Page, expected_cells

results = pytest.importorskip("primus_bootstrap.bench.results.reader", reason="judging is not part of this tree")
judging = pytest.importorskip("primus_bootstrap.bench")


def _line(host: str, device: int, tflop_per_s: float) -> bytes:
    """Return what the GEMM benchmark writes of one device."""
    samples = [tflop_per_s * (1 + 0.001 * (place - 10)) for place in range(21)]
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


def test_a_judgement_becomes_a_report() -> None:
    """Values, floors, versions, directions and the history of each serial are those of the judgement, and its verdicts are on the page."""
    lines = [_line(f"node{host}", device, 380.0 if (host, device) == (3, 2) else 620.0 + host) for host in range(8) for device in range(4)]
    reading = results.parse_lines([*lines, b"{torn"], name="results.jsonl", host="node1")
    hosts = [f"node{host}" for host in range(9)]
    floors = judging.load_floors()
    first = judging.judge(reading.results, floors=floors, history=judging.make_history([]), hosts=hosts)
    history = judging.make_history(judging.new_records(first, {}, time=STARTED - 1000))
    judged = judging.judge(reading.results, floors=floors, history=history, hosts=hosts, others=reading.problems)
    better = {(each.series.benchmark, each.series.text()): each.better for each in reading.results}
    values = report_values(judged.values, better)
    past = report_history(values, history.records)
    run = BenchRun("lab", "quick", STARTED, 60.0, tuple(judged.hosts.items()), judged.verdicts, values, past)

    assert results.STACK == STACK
    assert {(each.series, each.better, each.stack) for each in values} == {(SERIES, "higher", "torch 2.13, rocm 7.0, driver 6.14")}
    assert {each.floor for each in values} == {floors.find(reading.results[0].series, "AMD Instinct MI300X").value}
    assert len(past) == len(values) == 32
    assert all(subject(each) == SERIES for each in run.verdicts if each.device)
    assert [each.verdict for each in findings(run)[0].places] == ["fail"]
    assert {each.check for each in findings(run)} == {"bench_gemm", "bench_results"}
    assert summary(run).startswith("bench lab, tier quick: 1 fail, 2 unknown, 6 pass")
    assert Page(html_text(run)).cells == expected_cells(run.verdicts)
    assert run_from_json(json.loads(json.dumps(run.to_json()))) == run
