"""A bench is written and read without loss, and its rows contain every verdict."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from primus_bootstrap.bench.judging.samples import GroupKey, Sample
from primus_bootstrap.bench.judging.verdicts import EvaluatedValue, worst_of
from primus_bootstrap.bench.report.bench_report import BenchRun, HistoryPoint, read_run, run_from_json
from primus_bootstrap.bench.report.build import device_histories, reported_values
from primus_bootstrap.bench.report.rows import all_verdicts, findings, host_rows, natural, summary, totals
from primus_bootstrap.bench.results.history import DeviceRecord, Fingerprint, PastValue
from primus_bootstrap.bench.results.reader import Series, canonical
from primus_bootstrap.core.errors import RunError
from primus_bootstrap.core.verdicts import OUTCOMES
from tests.unit.bench_report_rig import RUNS, SERIES, bench_run, full_run, verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from primus_bootstrap.core.verdicts import Outcome


def test_a_bench_is_read_as_it_was_written(tmp_path: Path) -> None:
    """bench.json contains everything."""
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(full_run().to_json()))

    assert read_run(path) == full_run()


@given(run=RUNS)
@settings(max_examples=60, deadline=None)
def test_no_verdict_is_lost(run: BenchRun) -> None:
    """JSON and rows contain every verdict once, and the counts of the hosts add up to them."""
    sums = tuple(sum(row.counts[index] for row in host_rows(run)) for index in range(len(OUTCOMES)))
    shown = findings(run, OUTCOMES)

    assert [(found["host"], found["check"], found["verdict"]) for found in run.to_json()["verdicts"]] == [
        (found.host, found.check, found.verdict) for found in run.verdicts
    ]
    assert sums == tuple(Counter(found.verdict for found in all_verdicts(run))[word] for word in OUTCOMES)
    assert Counter(id(found) for finding in shown for found in finding.places).total() == len(all_verdicts(run))


def _without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data.pop(name)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        pytest.param(lambda data: data.update(schema="primus.bench/9"), "schema is 'primus.bench/9'", id="schema"),
        pytest.param(_without("verdicts"), "verdicts is missing", id="missing"),
        pytest.param(lambda data: data["values"][0].update(value="fast"), "'fast' is not a finite number", id="text for a number"),
        pytest.param(lambda data: data["values"][0].update(value=float("nan")), "nan is not a finite number", id="no number"),
        pytest.param(lambda data: data["history"][0].update(points=[[1, 2]]), "not enough values to unpack", id="point"),
        pytest.param(lambda data: data["decisions"][0].update(colour="red"), "colour", id="unknown field"),
        pytest.param(lambda data: data.update(cluster=7), "7 is not text", id="number for a text"),
        pytest.param(lambda data: data["breaker"].update(since=None), "None is not a finite number", id="breaker"),
    ],
)
def test_a_damaged_bench_is_refused_with_the_reason(damage: Callable[[dict[str, Any]], Any], what: str) -> None:
    """The error names the file and the field."""
    data = json.loads(json.dumps(full_run().to_json()))
    damage(data)

    with pytest.raises(RunError) as caught:
        run_from_json(data, name="x.json")

    assert caught.value.what.startswith("x.json does not follow primus.bench/1: ")
    assert what in caught.value.what


@pytest.mark.parametrize("content", [None, b'{"schema": "primus.ben', b"\xff", b"[]", b"3"])
def test_a_file_without_a_bench_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A missing, incomplete or foreign file is an error with a fix."""
    path = tmp_path / "bench.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(RunError, match=r"(cannot read .*bench\.json|bench\.json (is damaged|does not follow))"):
        read_run(path)


def test_a_verdict_of_a_later_version_is_unknown() -> None:
    """An unknown word never becomes a pass."""
    data = json.loads(json.dumps(full_run().to_json()))
    data["verdicts"][0]["verdict"] = "excellent"
    data["hosts"]["node2"] = "excellent"
    data["values"][0]["verdict"] = "excellent"
    run = run_from_json(data)

    assert (run.verdicts[0].verdict, run.hosts[0], run.values[0].verdict) == ("unknown", ("node2", "unknown"), "unknown")


def test_a_host_without_a_verdict_counts_as_unknown() -> None:
    """Even if the host's own outcome is a pass."""
    run = bench_run((("node1", "pass"),), ())

    assert [(row.host, row.verdict, row.counts, row.worst) for row in host_rows(run)] == [("node1", "unknown", (0, 0, 1, 0), ("bench",))]


def test_the_outcome_of_a_host_counts_before_its_verdicts() -> None:
    """The policy only warns about some checks. Without an outcome, the worst verdict counts."""
    warned = bench_run((("node1", "pass"),), (verdict("node1", "fail"),))
    unsaid = bench_run((), (verdict("node1", "fail"), verdict("node1", "pass")))

    assert (host_rows(warned)[0].verdict, host_rows(warned)[0].counts) == ("pass", (0, 1, 0, 0))
    assert host_rows(unsaid)[0].verdict == "fail"


def test_the_worst_hosts_come_first_and_paths_last() -> None:
    """Hosts are ordered by verdict, number of failures and name; paths between hosts come last."""
    verdicts = (
        verdict("node1", "pass"),
        verdict("node10", "fail"),
        verdict("node2", "fail"),
        verdict("node3", "fail"),
        verdict("node3", "fail"),
        verdict("node4", "unknown"),
        verdict("node1,node2", "fail"),
    )
    run = bench_run((), verdicts)

    assert [row.host for row in host_rows(run)] == ["node3", "node2", "node10", "node4", "node1", "node1,node2"]
    assert totals(run)[0] == {"fail": 3, "unknown": 1, "pass": 1}


def test_equal_causes_are_one_finding() -> None:
    """Reasons that differ only in their figures are one finding; another reason, fix or check is another."""
    found = [(finding.verdict, finding.check, len(finding.places), len(finding.reasons)) for finding in findings(full_run())]

    assert found == [
        ("fail", "bench_gemm", 2, 2),
        ("unknown", "bench_results", 1, 1),
        ("unknown", "bench", 1, 1),
        ("unknown", "fabric_pair", 1, 1),
        ("unknown", "preflight_ecc", 1, 1),
    ]


def test_the_summary_is_one_line() -> None:
    """It counts hosts and verdicts, and names an open breaker."""
    assert summary(full_run()) == "bench lab, tier standard: 2 fail, 2 unknown; 10 verdicts; breaker open: no host is quarantined"


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [(("pass", "fail", "unknown"), "fail"), (("pass", "unknown", "skipped"), "unknown"), (("pass", "skipped"), "pass"), ((), "unknown")],
)
def test_the_worst_outcome(outcomes: tuple[Outcome, ...], expected: Outcome) -> None:
    """Fail comes before unknown, pass and skipped; without an outcome the result is unknown."""
    assert worst_of(outcomes) == expected


@pytest.mark.parametrize("names", [["node2", "node10"], ["1", "a"], ["", "0"], ["gpu1-b2", "gpu1-b10", "gpu2-a"]])
def test_numbers_in_names_are_ordered_as_numbers(names: list[str]) -> None:
    """node2 comes before node10."""
    assert sorted(names, key=natural) == names


GEMM = Series("gemm", "tflop_per_s", canonical({"m": 8192, "n": 8192, "k": 8192, "dtype": "bf16"}), 1)


def _value(serial: str) -> EvaluatedValue:
    key = GroupKey(GEMM, "TFLOP/s", "higher", "MI300X", ("2.13", "", "7.0", ""))
    return EvaluatedValue(key, Sample("node1", "3", serial, 612.5, 6.4, 0.01, 20, 1, 0.0, 1.0), 426.0, "pass")


def _record(time: float, verdict: Outcome, *values: PastValue) -> DeviceRecord:
    return DeviceRecord("", "node1", "3", "MI300X", (), time, verdict, Fingerprint(), values)


def test_evaluated_values_become_reported_values() -> None:
    """The report has series and versions as text, and the better direction."""
    (value,) = reported_values([_value("SN1")])

    assert (value.series, value.stack, value.better, value.floor) == (SERIES, "torch 2.13, rocm 7.0", "higher", 426.0)


@pytest.mark.parametrize(("serial", "key"), [("SN1", "SN1"), ("", "node1:3")])
def test_the_history_follows_the_device(serial: str, key: str) -> None:
    """Records are found by serial number, or by host and device without one; only the same series and unit count, oldest first."""
    values = reported_values([_value(serial)])
    newer = _record(20.0, "pass", PastValue(GEMM, "TFLOP/s", 600.0, 0.01))
    older = _record(10.0, "fail", PastValue(GEMM, "TFLOP/s", 500.0, 0.01))
    other_series = PastValue(GEMM._replace(benchmark="memory"), "TFLOP/s", 2.0, 0.01)
    other = _record(15.0, "pass", PastValue(GEMM, "GB/s", 1.0, 0.01), other_series)

    histories = device_histories(values, {key: (newer, older, other), "SN9": (newer,)})

    points = (HistoryPoint(10.0, 500.0, "fail"), HistoryPoint(20.0, 600.0, "pass"))
    assert [(history.host, history.device, history.points) for history in histories] == [("node1", "3", points)]
