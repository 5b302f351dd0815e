"""The HTML page shows every verdict, loads and runs nothing, and states in words what its drawings show."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from primus_bootstrap.bench.quarantine.decisions import Breaker, Decision
from primus_bootstrap.bench.report.bench_report import BenchRun  # noqa: TC001 - hypothesis evaluates the hint
from primus_bootstrap.bench.report.drawings import distribution, number, ticks
from primus_bootstrap.bench.report.html_page import html_text
from primus_bootstrap.bench.report.rows import all_verdicts, summary
from tests.unit.bench_report_rig import (
    RUNS,
    STARTED,
    Page,
    bench_run,
    device_history,
    expected_cells,
    full_run,
    hostile_run,
    value,
    verdict,
)


@given(run=RUNS)
@settings(max_examples=60, deadline=None)
def test_every_verdict_is_a_cell_of_its_host(run: BenchRun) -> None:
    """Each verdict appears once, under its host, check and device, with its value."""
    assert Page(html_text(run)).cells == expected_cells(all_verdicts(run))


def test_two_equal_verdicts_are_both_shown() -> None:
    """Equal result lines are not merged."""
    assert Page(html_text(full_run())).cells["node2", "bench_gemm", "device 0", "pass", "612.5"] == 2


def test_no_text_of_a_bench_becomes_markup() -> None:
    """Scripts, pictures and closing tags in any field are escaped, and the page loads nothing."""
    page = Page(html_text(hostile_run()))

    assert not page.elements.keys() & {"script", "img", "iframe", "object", "base", "form"}
    assert page.elements["style"] == page.elements["body"] == 1
    assert [link for link in page.links if not re.fullmatch(r"#node-\d+", link)] == ["data:,"]
    assert page.cells.total() == 1


def test_the_page_is_always_valid_utf_8() -> None:
    """Surrogates and control characters are replaced."""
    html_text(hostile_run()).encode("utf-8")


def test_the_page_has_a_content_security_policy() -> None:
    """It allows only the page's own style."""
    text = html_text(full_run())

    assert "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';" in text
    assert not re.search(r"url\(|@import|https?://", text)


def test_passes_with_weaker_evidence_have_a_section() -> None:
    """The summary counts them; plain passes are in neither."""
    reason = "without its peers: its peers differ too much: a slowdown of 11 % could not be detected"
    blind = tuple(verdict("node1", "pass", device=device, reason=reason) for device in "01")
    run = bench_run((("node1", "pass"),), (*blind, verdict("node1", "pass", device="2")))
    text = Page(html_text(run)).text

    assert text[text.index("Passes with weaker evidence") :].count(reason) == 1
    assert "2 passes with weaker evidence" in summary(run)
    assert "weaker evidence" not in summary(full_run())


def test_findings_come_first_with_reason_and_fix() -> None:
    """The first table has places, values, limits, the reason of each place if they differ, and the fix."""
    text = Page(html_text(full_run())).text
    found = text[text.index("What needs attention") : text.index("Every host and check")]

    for expected in ("6.2 % below the floor", "12.1 % below the floor", "401 TFLOP/s; expected at least 426", "fix: bench it again"):
        assert expected in found
    assert found.index("6.2 %") < found.index("timed out after 10 s")


def test_a_host_without_a_verdict_is_unknown_everywhere() -> None:
    """A lost host is among the findings, in the map, and has a section."""
    page = Page(html_text(full_run()))

    assert page.cells["lost1", "bench", "host", "unknown", "unknown"] == 1
    assert "the host gave no verdict" in page.text


def test_a_finding_with_many_places_is_folded() -> None:
    """500 hosts are one row with the first names and the number of the others."""
    verdicts = tuple(verdict(f"node{index}", "unknown", reason="nothing to compare with") for index in range(500))

    text = Page(html_text(bench_run((), verdicts))).text

    assert "500 results: node0, node1, node2, node3, node4, node5, node6, node7 and 492 more" in text


def test_a_page_without_findings_has_a_sentence() -> None:
    """It replaces the table of findings."""
    text = Page(html_text(bench_run((("node1", "pass"),), (verdict("node1", "pass"),)))).text

    assert "Nothing failed, and nothing is unknown." in text


def test_the_breaker_and_unreadable_files_come_first() -> None:
    """Reason, hosts and fix of an open breaker, and damaged files, are above the findings."""
    text = Page(html_text(full_run())).text
    top = text[: text.index("What needs attention")]

    for expected in ("2 of 3 hosts would be quarantined", "node2, node10", "fix: find the shared cause", "history.jsonl:7: not a record"):
        assert expected in top


def test_decisions_of_the_gate_are_shown() -> None:
    """Each host that the gate changes has a line with the reason; the others are folded and counted."""
    decisions = (Decision("node10", "quarantine", "bench_gemm failed"), Decision("node2", "leave", "it passes"))
    page = Page(html_text(replace(full_run(), decisions=decisions, breaker=Breaker("many", STARTED, ()))))

    assert re.search(
        r"host decision reason node10 quarantine bench_gemm failed hosts left as they are: 1 .*node2 leave it passes", page.text
    )
    assert "gate: quarantine" in page.text
    assert "gate: leave" not in page.text


def test_a_drawing_has_a_text() -> None:
    """It has count, lowest, median and highest value, floor, and the values that do not pass."""
    text = Page(html_text(full_run())).text

    assert "4 values of 2 hosts: lowest 380, median 506, highest 612.5 TFLOP/s; floor 426." in text
    assert "Not passing: node2 device 1 401 (fail), node10 device 1 380 (fail)." in text


def test_the_floor_is_a_line() -> None:
    """With values from 400 to 600 and a floor of 500, it is in the middle; without a floor there is none."""
    drawing = distribution([value("node1", "0", 400.0, floor=500.0), value("node2", "0", 600.0, floor=500.0)])

    assert drawing.floor
    assert drawing.floor.x == pytest.approx(320.0)
    assert distribution([value("node1", "0", 400.0, floor=None)]).floor is None


def test_few_values_are_marks_and_many_are_bars() -> None:
    """A single failing value among thousands has a visible bar."""
    few = distribution([value("node1", "0", 400.0, "fail"), value("node2", "0", 600.0), value("node3", "0", 590.0, "unknown")])
    many = [value(f"node{index}", "0", 600.0 + index / 1000) for index in range(4000)]
    crowded = distribution([*many, value("node1", "1", 600.0, "fail")])

    assert (Counter(mark.verdict for mark in few.marks), few.bars) == ({"fail": 1, "pass": 1, "unknown": 1}, ())
    assert ([bar.height for bar in crowded.bars if bar.verdict == "fail"], crowded.marks) == ([2.0], ())


def test_marks_and_bars_are_shapes_of_the_page() -> None:
    """A cross fails, a dot passes; a bar has the colour of its verdict."""
    few = html_text(bench_run((), (), values=(value("node1", "0", 400.0, "fail"), value("node2", "0", 600.0))))
    many = html_text(bench_run((), (), values=tuple(value(f"node{index}", "0", 600.0) for index in range(9))))

    assert Counter(re.findall(r'class="(dot \w+|cross \w+|bar \w+|floor)"', few)) == {"cross fail": 1, "dot pass": 1, "floor": 1}
    assert Counter(re.findall(r'class="(dot \w+|bar \w+)"', many)) == {"bar pass": 1}


@pytest.mark.parametrize("values", [(5.0,), (5.0, 5.0, 5.0), (1e-9, 1e12), (0.0,), (-3.0, 4.0)])
def test_any_values_can_be_drawn(values: tuple[float, ...]) -> None:
    """One value, equal values, and values of very different sizes have ticks and stay inside the drawing."""
    drawing = distribution([value("node1", str(index), level, floor=None) for index, level in enumerate(values)])

    assert drawing.ticks
    assert all(0 <= label.x <= 640 for label in (*drawing.ticks, drawing.median))
    assert all(0 <= mark.x <= 640 for mark in drawing.marks)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 10.0, (0, 2, 4, 6, 8, 10)), (421.0, 640.0, (450, 500, 550, 600)), (4.09, 4.26, (4.1, 4.15, 4.2, 4.25))],
)
def test_an_axis_has_round_numbers(low: float, high: float, expected: tuple[float, ...]) -> None:
    """Ticks are multiples of 1, 2, 2.5 or 5 in the range."""
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("shown", "expected"), [(612.53, "612.5"), (0.00123, "0.00123"), (123456.7, "123,457"), (5.0, "5")])
def test_numbers_are_short(shown: float, expected: str) -> None:
    """Numbers have four digits; large ones are whole."""
    assert number(shown) == expected


def test_the_history_names_the_device_that_lost_most() -> None:
    """A row draws the history of each device, and compares the worst one with its own median."""
    page = Page(html_text(full_run()))

    assert "device 1: -34.2 % against 3 earlier benches" in page.text
    assert page.elements["polyline"] == 2


def test_a_device_without_a_value_keeps_its_history() -> None:
    """A device whose benchmark failed shows its earlier values."""
    run = bench_run((("node1", "unknown"),), (verdict("node1", "unknown", device="0"),), history=(device_history("node1", "0", 600.0),))

    assert "1 earlier bench, no value now" in Page(html_text(run)).text


def test_a_large_fleet_has_every_host_in_the_map() -> None:
    """512 hosts of eight devices are 512 rows, sections and links."""
    verdicts = tuple(verdict(f"node{host}", "pass", device=str(device)) for host in range(512) for device in range(8))

    page = Page(html_text(bench_run((), verdicts)))

    assert page.elements["details"] == 512
    assert {f"#node-{host}" for host in range(512)} <= set(page.links)
    assert page.cells.total() == 4096
