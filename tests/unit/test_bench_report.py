"""A bench is written and read back whole, and its rows lose no verdict."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings

from primus_bootstrap.bench.report.bench_report import BenchRun, Point, read_run, run_from_json
from primus_bootstrap.bench.report.report_input import report_history, report_values
from primus_bootstrap.bench.report.rows import all_verdicts, findings, host_rows, natural, summary, totals, verdict_rows, worst_of
from primus_bootstrap.core.errors import RunError
from primus_bootstrap.core.verdicts import OUTCOMES
from tests.unit.bench_report_rig import RUNS, SERIES, bench_run, full_run, verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from primus_bootstrap.core.verdicts import Outcome


def test_a_bench_is_read_back_as_it_was(tmp_path: Path) -> None:
    """Everything that a bench holds is in its JSON."""
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(full_run().to_json()))

    assert read_run(path) == full_run()


@given(run=RUNS)
@settings(max_examples=60, deadline=None)
def test_no_verdict_is_lost_on_the_way(run: BenchRun) -> None:
    """Whatever a bench holds, its JSON has every verdict, the rows have each once, and the hosts' counts add up to them."""
    rows = Counter((row.host, row.device, row.check, row.verdict) for row in verdict_rows(run))
    expected = Counter((each.host or "(cluster)", each.device, each.check, each.verdict) for each in all_verdicts(run))
    sums = tuple(sum(row.counts[place] for row in host_rows(run)) for place in range(len(OUTCOMES)))
    shown = findings(run, OUTCOMES)

    assert [(each["host"], each["check"], each["verdict"]) for each in run.to_json()["verdicts"]] == [
        (each.host, each.check, each.verdict) for each in run.verdicts
    ]
    assert rows == expected
    assert sums == tuple(Counter(each.verdict for each in all_verdicts(run))[word] for word in OUTCOMES)
    assert Counter(id(each) for finding in shown for each in finding.places).total() == len(all_verdicts(run))


def _without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data.pop(name)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        pytest.param(lambda data: data.update(schema="primus.bench/9"), "schema is 'primus.bench/9'", id="schema"),
        pytest.param(_without("verdicts"), "verdicts is missing", id="missing"),
        pytest.param(lambda data: data["values"][0].update(value="fast"), "'fast' is no finite number", id="text for a number"),
        pytest.param(lambda data: data["values"][0].update(value=float("nan")), "nan is no finite number", id="no number"),
        pytest.param(lambda data: data["history"][0].update(points=[[1, 2]]), "not enough values to unpack", id="point"),
        pytest.param(lambda data: data["decisions"][0].update(colour="red"), "colour", id="unknown field"),
        pytest.param(lambda data: data.update(cluster=7), "7 is no text", id="number for a text"),
        pytest.param(lambda data: data["breaker"].update(since=None), "None is no finite number", id="breaker"),
    ],
)
def test_a_damaged_bench_is_refused_with_its_reason(damage: Callable[[dict[str, Any]], Any], what: str) -> None:
    """Nothing is guessed: the error names the file, the field and the way out."""
    data = json.loads(json.dumps(full_run().to_json()))
    damage(data)

    with pytest.raises(RunError) as caught:
        run_from_json(data, name="x.json")

    assert caught.value.what.startswith("x.json: is no primus.bench/1: ")
    assert what in caught.value.what


@pytest.mark.parametrize("content", [None, b'{"schema": "primus.ben', b"\xff", b"[]", b"3"])
def test_a_file_that_holds_no_bench_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A missing, torn or foreign file is an error with a fix, not a bench without verdicts."""
    path = tmp_path / "bench.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(RunError, match=r"bench\.json: (cannot be read|is no)"):
        read_run(path)


def test_a_verdict_word_that_is_not_known_is_unknown() -> None:
    """A file of a later version does not turn a word into a pass."""
    data = json.loads(json.dumps(full_run().to_json()))
    data["verdicts"][0]["verdict"] = "excellent"
    data["hosts"]["node2"] = "excellent"
    data["values"][0]["verdict"] = "excellent"
    run = run_from_json(data)

    assert (run.verdicts[0].verdict, run.hosts[0], run.values[0].verdict) == ("unknown", ("node2", "unknown"), "unknown")


def test_a_host_without_a_verdict_counts_as_unknown() -> None:
    """Also where the host itself was said to pass."""
    run = bench_run((("node1", "pass"),), ())

    assert [(row.host, row.verdict, row.counts, row.worst) for row in host_rows(run)] == [("node1", "unknown", (0, 0, 1, 0), ("bench",))]


def test_a_host_is_what_the_bench_says_of_it() -> None:
    """The policy only warns of some checks; of a host of which nothing was said, the worst verdict counts."""
    warned = bench_run((("node1", "pass"),), (verdict("node1", "fail"),))
    unsaid = bench_run((), (verdict("node1", "fail"), verdict("node1", "pass")))

    assert (host_rows(warned)[0].verdict, host_rows(warned)[0].counts) == ("pass", (0, 1, 0, 0))
    assert host_rows(unsaid)[0].verdict == "fail"


def test_the_worst_hosts_come_first_and_paths_last() -> None:
    """Failing ones by how many failures they have, then by name as people count; a path between hosts is no host."""
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


def test_a_cause_is_named_once_with_every_place() -> None:
    """Reasons that differ in their figures are one cause; another sentence, another fix or another check is another."""
    found = [(each.verdict, each.check, len(each.places), len(each.reasons)) for each in findings(full_run())]

    assert found == [
        ("fail", "bench_gemm", 2, 2),
        ("unknown", "bench_results", 1, 1),
        ("unknown", "bench", 1, 1),
        ("unknown", "fabric_pair", 1, 1),
        ("unknown", "preflight_ecc", 1, 1),
    ]


def test_the_summary_says_how_it_ended() -> None:
    """One line: hosts by verdict, how many verdicts, and that the breaker is open."""
    assert summary(full_run()) == "bench lab, tier standard: 2 fail, 2 unknown; 10 verdicts; breaker open: nothing is quarantined"


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [(("pass", "fail", "unknown"), "fail"), (("pass", "unknown", "skipped"), "unknown"), (("pass", "skipped"), "pass"), ((), "unknown")],
)
def test_the_worst_word_counts(outcomes: tuple[Outcome, ...], expected: Outcome) -> None:
    """Fail before unknown before pass before skipped; nothing at all is unknown."""
    assert worst_of(outcomes) == expected


@pytest.mark.parametrize("names", [["node2", "node10"], ["1", "a"], ["", "0"], ["gpu1-b2", "gpu1-b10", "gpu2-a"]])
def test_names_are_in_the_order_of_people(names: list[str]) -> None:
    """Numbers in names count as numbers."""
    assert sorted(names, key=natural) == names


class _Series(NamedTuple):
    benchmark: str = "gemm"

    def text(self) -> str:
        return SERIES


class _Judged(NamedTuple):
    series: _Series
    unit: str
    model: str
    stack: tuple[str, ...]
    host: str
    device: str
    serial: str
    value: float
    error: float
    repeats: int
    floor: float | None
    verdict: Outcome


class _Earlier(NamedTuple):
    series: _Series
    unit: str
    value: float


class _Record(NamedTuple):
    time: float
    verdict: Outcome
    values: tuple[_Earlier, ...]


def _judged(serial: str) -> _Judged:
    return _Judged(_Series(), "TFLOP/s", "MI300X", ("2.13", "", "7.0", ""), "node1", "3", serial, 612.5, 0.01, 20, 426.0, "pass")


def test_judged_values_become_those_of_the_report() -> None:
    """With the versions by name, and which way is better where it was said."""
    known = report_values([_judged("SN1")], {("gemm", SERIES): "higher"})[0]
    unsaid = report_values([_judged("SN1")], {})[0]

    assert (known.series, known.stack, known.better, known.floor) == (SERIES, "torch 2.13, rocm 7.0", "higher", 426.0)
    assert unsaid.better == ""


@pytest.mark.parametrize(("serial", "key"), [("SN1", "SN1"), ("", "node1:3")])
def test_the_history_follows_the_device(serial: str, key: str) -> None:
    """Found by serial wherever the device was, by place where it has none; oldest first, and only the same series and unit."""
    values = report_values([_judged(serial)], {})
    newer = _Record(20.0, "pass", (_Earlier(_Series(), "TFLOP/s", 600.0),))
    older = _Record(10.0, "fail", (_Earlier(_Series(), "TFLOP/s", 500.0),))
    other = _Record(15.0, "pass", (_Earlier(_Series(), "GB/s", 1.0), _Earlier(_Series("memory"), "TFLOP/s", 2.0)))

    found = report_history(values, {key: (newer, older, other), "SN9": (newer,)})

    points = (Point(10.0, 500.0, "fail"), Point(20.0, 600.0, "pass"))
    assert [(each.host, each.device, each.points) for each in found] == [("node1", "3", points)]
