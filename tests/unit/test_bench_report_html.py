"""The page of a bench shows every verdict, runs and loads nothing, and says in words what it draws."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings

from primus_bootstrap.bench.report.bench_report import BenchRun, Breaker, Decision
from primus_bootstrap.bench.report.html_page import html_text
from primus_bootstrap.bench.report.rows import all_verdicts, summary
from primus_bootstrap.bench.report.svg import distribution, number, ticks
from tests.unit.bench_report_rig import RUNS, STARTED, Page, bench_run, expected_cells, full_run, hostile_run, past, value, verdict


@given(run=RUNS)
@settings(max_examples=60, deadline=None)
def test_every_verdict_is_a_cell_of_its_host(run: BenchRun) -> None:
    """Whatever a bench holds, the page shows each verdict once, under its host, check and device, with its word and what was found."""
    assert Page(html_text(run)).cells == expected_cells(all_verdicts(run))


def test_two_equal_verdicts_are_both_shown() -> None:
    """Two lines of results about the same thing do not become one."""
    assert Page(html_text(full_run())).cells["node2", "bench_gemm", "device 0", "pass", "612.5"] == 2


def test_no_text_of_a_bench_becomes_markup() -> None:
    """Scripts, pictures and closing tags in any field are text: the page has the elements of a harmless bench and loads nothing."""
    page = Page(html_text(hostile_run()))

    assert not page.elements.keys() & {"script", "img", "iframe", "object", "base", "form"}
    assert page.elements["style"] == page.elements["body"] == 1
    assert [link for link in page.links if not re.fullmatch(r"#node-\d+", link)] == ["data:,"]
    assert page.cells.total() == 1


def test_the_page_can_be_written_whatever_was_in_the_bench() -> None:
    """Half surrogates and control characters are replaced, so that the file is valid UTF-8 and no parser stumbles."""
    html_text(hostile_run()).encode("utf-8")


def test_the_page_forbids_itself_to_load_or_run_anything() -> None:
    """A content security policy allows its own style and nothing else."""
    text = html_text(full_run())

    assert 'http-equiv="Content-Security-Policy" content="default-src &#x27;none&#x27;; style-src &#x27;unsafe-inline&#x27;;' in text
    assert not re.search(r"url\(|@import|https?://", text)


def test_a_pass_that_says_what_it_lacked_is_shown_as_such() -> None:
    """Where peers could not judge, the page has a part for it, and the summary counts them; plain passes are in neither."""
    reason = "without its peers: its peers lie too far apart: a slowdown of 11 % would not be seen here"
    blind = tuple(verdict("node1", "pass", device=device, reason=reason) for device in "01")
    run = bench_run((("node1", "pass"),), (*blind, verdict("node1", "pass", device="2")))
    text = Page(html_text(run)).text

    assert text[text.index("What passed with less") :].count(reason) == 1
    assert "2 passes rest on less than usual" in summary(run)
    assert "rest on less" not in summary(full_run())


def test_what_needs_a_look_comes_first_with_reason_and_fix() -> None:
    """The first table names each place, what was found and expected, the own reason of each where they differ, and what to do."""
    text = Page(html_text(full_run())).text
    found = text[text.index("What needs a look") : text.index("Every host and check")]

    for expected in ("6.2 % below the floor", "12.1 % below the floor", "401 TFLOP/s; expected at least 426", "fix: bench it again"):
        assert expected in found
    assert found.index("6.2 %") < found.index("timed out after 10 s")


def test_a_host_without_a_verdict_is_unknown_everywhere() -> None:
    """A host that was lost is in the first table, in the map and in its own part."""
    page = Page(html_text(full_run()))

    assert page.cells["lost1", "bench", "host", "unknown", "unknown"] == 1
    assert "no verdict: nothing is known of this host" in page.text


def test_a_cause_with_many_places_is_one_folded_line() -> None:
    """Five hundred hosts with one cause are one row that names the first and counts the rest."""
    verdicts = tuple(verdict(f"node{place}", "unknown", reason="no yardstick") for place in range(500))

    text = Page(html_text(bench_run((), verdicts))).text

    assert "500 results: node0, node1, node2, node3, node4, node5, node6, node7 and 492 more" in text


def test_nothing_to_look_at_is_said() -> None:
    """A bench that passes says so in words."""
    text = Page(html_text(bench_run((("node1", "pass"),), (verdict("node1", "pass"),)))).text

    assert "Nothing failed, and nothing is unknown." in text


def test_the_breaker_and_what_could_not_be_read_stand_above_all() -> None:
    """An open breaker shows its reason, hosts and fix before the findings; so does a damaged file."""
    text = Page(html_text(full_run())).text
    top = text[: text.index("What needs a look")]

    for expected in ("2 of 3 hosts would be quarantined", "node2, node10", "fix: look at what they share", "history.jsonl:7: is no record"):
        assert expected in top


def test_decisions_of_the_gate_are_shown() -> None:
    """Each host that the gate does something with has a line with the reason; those that it leaves alone are folded and counted."""
    decisions = (Decision("node10", "quarantine", "bench_gemm failed"), Decision("node2", "leave", "it passes"))
    page = Page(html_text(replace(full_run(), decisions=decisions, breaker=Breaker("many", STARTED, ()))))

    assert re.search(r"host decision why node10 quarantine bench_gemm failed hosts left as they are: 1 .*node2 leave it passes", page.text)
    assert "gate: quarantine" in page.text
    assert "gate: leave" not in page.text


def test_a_drawing_says_in_words_what_it_shows() -> None:
    """Count, lowest, median, highest, floor, and who does not pass stand below it as text."""
    text = Page(html_text(full_run())).text

    assert "4 values of 2 hosts: lowest 380, median 506, highest 612.5 TFLOP/s; floor 426." in text
    assert "Not passing: node2 device 1 401 (fail), node10 device 1 380 (fail)." in text


def test_the_floor_is_a_line_at_its_place() -> None:
    """With values from 400 to 600 and a floor of 500, the line stands in the middle; without a floor there is none."""
    drawn = distribution([value("node1", "0", 400.0, floor=500.0), value("node2", "0", 600.0, floor=500.0)], "")
    line = re.search(r'class="floor" x1="([\d.]+)" x2="\1"', drawn)

    assert line
    assert float(line[1]) == pytest.approx(320.0)
    assert "floor" not in distribution([value("node1", "0", 400.0, floor=None)], "")


def test_each_value_is_a_mark_and_many_are_bars_by_verdict() -> None:
    """Few values are marks of different shapes; where they would not fit, bars, and one failing value among thousands can be seen."""
    few = distribution([value("node1", "0", 400.0, "fail"), value("node2", "0", 600.0), value("node3", "0", 590.0, "unknown")], "")
    many = [value(f"node{place}", "0", 600.0 + place / 1000) for place in range(4000)]
    bars = distribution([*many, value("node1", "1", 600.0, "fail")], "")
    heights = [float(each) for each in re.findall(r'class="bar fail"[^>]* height="([\d.]+)"', bars)]

    assert Counter(re.findall(r'class="((?:dot|cross) \w+)"', few)) == {"cross fail": 1, "dot pass": 1, "dot unknown": 1}
    assert heights == [2.0]


@pytest.mark.parametrize("values", [(5.0,), (5.0, 5.0, 5.0), (1e-9, 1e12), (0.0,), (-3.0, 4.0)])
def test_any_values_can_be_drawn(values: tuple[float, ...]) -> None:
    """One value, equal values, and values of very different sizes have an axis with round numbers and no mark outside."""
    drawn = distribution([value("node1", str(place), each, floor=None) for place, each in enumerate(values)], "")

    assert all(0 <= float(each) <= 640 for each in re.findall(r'c?x[12]?="([-\d.]+)"', drawn))
    assert "nan" not in drawn


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.0, 10.0, (0, 2, 4, 6, 8, 10)), (421.0, 640.0, (450, 500, 550, 600)), (4.09, 4.26, (4.1, 4.15, 4.2, 4.25))],
)
def test_an_axis_has_round_numbers(low: float, high: float, expected: tuple[float, ...]) -> None:
    """Ticks are at multiples of 1, 2, 2.5 or 5 within the range."""
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(("shown", "expected"), [(612.53, "612.5"), (0.00123, "0.00123"), (123456.7, "123,457"), (5.0, "5")])
def test_numbers_are_short(shown: float, expected: str) -> None:
    """Four digits are enough for a drawing; large numbers are whole."""
    assert number(shown) == expected


def test_the_history_says_which_device_lost_most() -> None:
    """A host's row draws each device's past and says in words how the worst one stands against its own median."""
    page = Page(html_text(full_run()))

    assert "device 1: -34.2 % against 3 earlier benches" in page.text
    assert page.elements["polyline"] == 2


def test_a_device_without_a_value_now_keeps_its_past() -> None:
    """A device whose benchmark failed this time shows what it did before."""
    run = bench_run((("node1", "unknown"),), (verdict("node1", "unknown", device="0"),), history=(past("node1", "0", 600.0),))

    assert "1 earlier bench, no value now" in Page(html_text(run)).text


def test_a_large_fleet_has_every_host_in_the_map() -> None:
    """512 hosts of eight devices are 512 rows, parts and links."""
    verdicts = tuple(verdict(f"node{host}", "pass", device=str(device)) for host in range(512) for device in range(8))

    page = Page(html_text(bench_run((), verdicts)))

    assert page.elements["details"] == 512
    assert {f"#node-{host}" for host in range(512)} <= set(page.links)
    assert page.cells.total() == 4096
