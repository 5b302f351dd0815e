"""The JUnit file of a bench contains every verdict once, in the published format."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree as ET

from hypothesis import given, settings

from primus_bootstrap.bench.report.bench_report import BenchRun  # noqa: TC001 - hypothesis may ask for it
from primus_bootstrap.bench.report.junit import junit_text
from primus_bootstrap.bench.report.rows import all_verdicts
from tests.unit.bench_report_rig import RUNS, bench_run, full_run, hostile_run, verdict

# Required (True) and optional attributes of each element, and its children: junit-10.xsd of Jenkins' xUnit plugin,
# https://github.com/jenkinsci/xunit-plugin/blob/master/src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd
_SUITE = {
    "name": True,
    "tests": True,
    "failures": True,
    "errors": True,
    "time": False,
    "skipped": False,
    "timestamp": False,
    "hostname": False,
}
_RESULT = {"type": False, "message": False}
_FORMAT: dict[str, tuple[dict[str, bool], set[str]]] = {
    "testsuites": ({"name": False, "time": False, "tests": False, "failures": False, "errors": False}, {"testsuite"}),
    "testsuite": (_SUITE, {"testcase"}),
    "testcase": ({"name": True, "time": False, "classname": False}, {"skipped", "error", "failure", "system-out"}),
    "failure": (_RESULT, set()),
    "error": (_RESULT, set()),
    "skipped": (_RESULT, set()),
    "system-out": ({}, set()),
}
_TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")
_OUTCOMES = {"failure": "fail", "error": "unknown", "skipped": "skipped", "system-out": "pass"}


def _parsed(text: str) -> ET.Element:
    return ET.fromstring(text.encode("utf-8"))  # noqa: S314 - written by this program


def _problems(element: ET.Element) -> list[str]:
    """Return where an element and its children violate the format."""
    attributes, children = _FORMAT[element.tag]
    found = [f"{element.tag}: {name} is missing" for name, must in attributes.items() if must and name not in element.attrib]
    found += [f"{element.tag}: {name}" for name in element.attrib.keys() - attributes.keys()]
    found += [f"{element.tag}: time {element.get('time')}" for _ in [0] if not _TIME.fullmatch(element.get("time", "0"))]
    found += [f"{element.tag}: contains {child.tag}" for child in element if child.tag not in children]
    return found + [problem for child in element if child.tag in children for problem in _problems(child)]


@given(run=RUNS)
@settings(max_examples=60, deadline=None)
def test_every_verdict_is_one_test_case(run: BenchRun) -> None:
    """The file is valid XML of the format, with one test case for each verdict, unique names and correct counts."""
    root = _parsed(junit_text(run))
    suites = root.findall("testsuite")
    names = [(suite.get("name"), case.get("name")) for suite in suites for case in suite]

    assert _problems(root) == []
    assert Counter(_OUTCOMES[case[0].tag] for case in root.iter("testcase")) == Counter(verdict.verdict for verdict in all_verdicts(run))
    assert len(set(names)) == len(names) == len(all_verdicts(run))
    for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert [int(suite.attrib[name]) for suite in suites] == [len(list(suite.iter(tag))) for suite in suites]
    assert root.attrib["tests"] == str(len(names))


def test_each_host_is_a_suite_in_natural_order() -> None:
    """Hosts, paths, and verdicts without a host are suites; a host without a verdict has an error."""
    root = _parsed(junit_text(full_run()))

    assert [suite.get("name") for suite in root] == ["(cluster)", "lost1", "node2", "node2,node10", "node10"]
    assert [case[0].tag for case in root.findall("testsuite[@name='lost1']/testcase")] == ["error"]


def test_a_test_case_contains_the_whole_verdict() -> None:
    """The reason is the message; found, expected, source, fix and serial number are the text."""
    case = _parsed(junit_text(full_run())).find("testsuite[@name='node10']/testcase/failure")

    assert case is not None
    assert case.get("message") == "12.1 % below the floor"
    for expected in ("found: 380 TFLOP/s", "at least 426", "source: floor: published", "fix: bench it again", "serial: SN-node10-1"):
        assert expected in str(case.text)


def test_names_do_not_contain_limits() -> None:
    """A reader can follow a test case over many benches; a duplicate gets a number."""
    names = [case.get("name") for case in _parsed(junit_text(full_run())).findall("testsuite[@name='node2']/testcase")]

    assert names[0] == "bench_gemm device 0 tflop_per_s dtype=bf16 k=8192 m=8192 n=8192"
    assert names[-1] == f"{names[0]} #2"


def test_invalid_characters_are_replaced() -> None:
    """The file stays readable with control characters and surrogates in the texts."""
    root = _parsed(junit_text(hostile_run()))

    assert [case[0].tag for case in root.iter("testcase")] == ["failure"]
    assert "<script>" in str(root[0].get("name"))


def test_impossible_times_are_replaced() -> None:
    """A time outside the calendar or a negative duration does not break the file."""
    run = bench_run((), (verdict("node1", "pass"),))

    assert 'timestamp="2027-01-15T08:00:00"' in junit_text(run)
    assert 'timestamp="1970-01-01T00:00:00" time="0"' in junit_text(hostile_run())
    assert 'time="-' not in junit_text(bench_run((), (replace(verdict("node1", "pass"), seconds=-0.0),)))
