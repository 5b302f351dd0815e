"""Write a bench as JUnit XML for continuous integration: one suite for each host, one test case for each verdict.

`fail` is a failure, `unknown` an error. The format is the schema of Jenkins' xUnit plugin:
https://github.com/jenkinsci/xunit-plugin/blob/master/src/main/resources/org/jenkinsci/plugins/xunit/types/model/xsd/junit-10.xsd
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import chain, count
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from primus_bootstrap.bench.report.rows import by_place, format_time, natural, subject, with_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.bench.report.bench_report import BenchRun
    from primus_bootstrap.core.verdicts import Outcome, Verdict

_ELEMENTS: dict[Outcome, str] = {"fail": "failure", "unknown": "error", "skipped": "skipped"}
# Characters that XML 1.0 cannot contain, not even escaped: https://www.w3.org/TR/xml/#charsets
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_text(run: BenchRun) -> str:
    """Return the whole file."""
    suites = [_suite(host, verdicts, run) for host, verdicts in sorted(by_place(run).items(), key=lambda item: natural(item[0]))]
    root = ET.Element("testsuites", {"name": _clean(f"bench {run.cluster}"), "time": _time(run.seconds)})
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False).join(('<?xml version="1.0" encoding="UTF-8"?>\n', "\n"))


def _suite(host: str, verdicts: Sequence[Verdict], run: BenchRun) -> ET.Element:
    counts = Counter(verdict.verdict for verdict in verdicts)
    started = min(verdict.started or run.started for verdict in verdicts)
    suite = ET.Element(
        "testsuite",
        {
            "name": _clean(host),
            "hostname": _clean(host),
            "timestamp": format_time(started),
            "time": _time(sum(verdict.seconds for verdict in verdicts)),
            "tests": str(len(verdicts)),
            "failures": str(counts["fail"]),
            "errors": str(counts["unknown"]),
            "skipped": str(counts["skipped"]),
        },
    )
    used: set[str] = set()
    for verdict in verdicts:
        name = _unused(_clean(_name(verdict)), used)
        used.add(name)
        suite.append(_case(host, name, verdict))
    return suite


def _unused(name: str, used: set[str]) -> str:
    """Return a name that is unique in the suite: readers merge test cases with the same name."""
    return next(unique for unique in chain([name], (f"{name} #{number}" for number in count(2))) if unique not in used)


def _case(host: str, name: str, verdict: Verdict) -> ET.Element:
    case = ET.Element("testcase", {"classname": _clean(host), "name": name, "time": _time(verdict.seconds)})
    element = _ELEMENTS.get(verdict.verdict)
    if element:
        end = ET.SubElement(case, element, {"message": _clean(verdict.reason or verdict.verdict)})
        if element != "skipped":
            end.set("type", _clean(verdict.check))
        end.text = _clean(_details(verdict))
    else:
        ET.SubElement(case, "system-out").text = _clean(_details(verdict))
    return case


def _name(verdict: Verdict) -> str:
    """Return the name of a test case. It contains no limits, so that it is the same in every run."""
    return " ".join(part for part in (verdict.check, f"device {verdict.device}" if verdict.device else "", subject(verdict)) if part)


def _details(verdict: Verdict) -> str:
    shown = {
        "found": with_unit(verdict.found, verdict.unit),
        "expected": verdict.expected,
        "source": verdict.source,
        "reason": verdict.reason,
        "fix": verdict.fix,
        "serial": verdict.serial,
    }
    return "\n".join(f"{name}: {text}" for name, text in shown.items() if text)


def _time(seconds: float) -> str:
    """Return a duration (s); 0 if it is negative or not a finite number."""
    return f"{abs(seconds):.3f}" if 0 <= seconds < math.inf else "0"  # abs: -0.0 is not less than 0


def _clean(text: str) -> str:
    return _NO_XML.sub("\ufffd", text)
