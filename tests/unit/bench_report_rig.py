"""Fake benches, and a parser of the HTML page that is independent of its templates."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import cast

from hypothesis import strategies as st

from primus_bootstrap.bench.quarantine.decisions import Action, Breaker, Decision
from primus_bootstrap.bench.report.bench_report import BenchRun, DeviceHistory, HistoryPoint, ReportedValue
from primus_bootstrap.core.verdicts import FIELDS, OUTCOMES, Outcome, Verdict, parse_verdict

STARTED = 1_800_000_000.0
SERIES = "tflop_per_s dtype=bf16 k=8192 m=8192 n=8192"
HOSTILE = "</style></title><script>document.title='run'</script><img src=x onerror=alert(1)>\"'&amp;]]> \x00\x1b\ud800 \u202e"

# A cell of a host's table: host, check, device, verdict, text.
Cell = tuple[str, str, str, str, str]


def verdict(host: str, outcome: Outcome, *, device: str = "", found: str = "600", reason: str = "", check: str = "bench_gemm") -> Verdict:
    """Return a verdict of a fake benchmark."""
    return Verdict(
        check=check,
        host=host,
        verdict=outcome,
        expected=f"{SERIES}: at least 426" if check.startswith("bench_") else "ready",
        found=found,
        unit="TFLOP/s",
        source="floor: published",
        reason=reason,
        fix="" if outcome == "pass" else "bench it again",
        device=device,
        serial=f"SN-{host}-{device}",
        started=STARTED,
        seconds=1.5,
    )


def value(host: str, device: str, measured: float, outcome: Outcome = "pass", *, floor: float | None = 426.0) -> ReportedValue:
    """Return a value of the same benchmark."""
    return ReportedValue(
        "gemm", SERIES, "TFLOP/s", "higher", "MI300X", "rocm 7.0", host, device, f"SN-{device}", measured, 0.01, 20, floor, outcome
    )


def device_history(host: str, device: str, *values: float) -> DeviceHistory:
    """Return earlier values of a device, a week apart."""
    points = tuple(HistoryPoint(STARTED - 604800 * (len(values) - index), number, "pass") for index, number in enumerate(values))
    return DeviceHistory(host, device, f"SN-{device}", "gemm", SERIES, "TFLOP/s", points)


def bench_run(
    hosts: tuple[tuple[str, Outcome], ...],
    verdicts: tuple[Verdict, ...],
    *,
    values: tuple[ReportedValue, ...] = (),
    history: tuple[DeviceHistory, ...] = (),
    name: str = "lab",
) -> BenchRun:
    """Return a bench with these parts."""
    return BenchRun(name, "quick", STARTED, 61.0, hosts, verdicts, values, history)


def full_run() -> BenchRun:
    """Return a bench with every kind of content that a report can show."""
    verdicts = (
        verdict("node2", "pass", device="0", found="612.5"),
        verdict("node2", "fail", device="1", found="401", reason="6.2 % below the floor"),
        verdict("node10", "fail", device="1", found="380", reason="12.1 % below the floor"),
        verdict("node10", "pass", device="0", found="611"),
        verdict("node10", "unknown", check="preflight_ecc", found="", reason="timed out after 10 s"),
        verdict("node2", "skipped", check="preflight_rdma_ports", found="", reason="no RDMA device"),
        verdict("node2,node10", "unknown", check="fabric_pair", found="", reason="the path is suspect"),
        verdict("", "unknown", check="bench_results", found="x.jsonl:3", reason="x.jsonl:3: is no JSON"),
        verdict("node2", "pass", device="0", found="612.5"),
    )
    return BenchRun(
        cluster="lab",
        tier="standard",
        started=STARTED,
        seconds=61.0,
        hosts=(("node2", "fail"), ("node10", "fail"), ("lost1", "unknown")),
        verdicts=verdicts,
        values=(
            value("node2", "0", 612.5),
            value("node2", "1", 401.0, "fail"),
            value("node10", "0", 611.0),
            value("node10", "1", 380.0, "fail"),
        ),
        history=(device_history("node2", "0", 610.0, 613.0, 612.0), device_history("node2", "1", 608.0, 609.0, 611.0)),
        decisions=(Decision("node2", "hold", "the breaker is open"),),
        breaker=Breaker("2 of 3 hosts would be quarantined", STARTED + 5, ("node10", "node2"), fix="find the shared cause"),
        problems=("history.jsonl:7: not a record",),
    )


def hostile_run() -> BenchRun:
    """Return a bench whose texts all contain markup."""
    bad = parse_verdict({**dict.fromkeys(FIELDS, HOSTILE), "verdict": "fail", "started": 1e300, "seconds": -1.0})
    bad = replace(bad, check=f"bench_{HOSTILE}")
    shown = ReportedValue(HOSTILE, HOSTILE, HOSTILE, "higher", HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1.0, 0.1, 5, 2.0, "fail")
    before = DeviceHistory(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, (HistoryPoint(1.0, 1.0, "pass"),))
    decided, breaker = Decision(HOSTILE, cast("Action", HOSTILE), HOSTILE), Breaker(HOSTILE, 1e300, (HOSTILE,), fix=HOSTILE)
    return BenchRun(HOSTILE, HOSTILE, -1e300, 1.0, ((HOSTILE, "fail"),), (bad,), (shown,), (before,), (decided,), breaker, (HOSTILE,))


_TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(["node1", "node2", "node10", "a,b", "", HOSTILE]))
_CHECKS = st.one_of(st.sampled_from(["bench_gemm", "preflight_ecc", "fabric_pair"]), st.text(min_size=1, max_size=8))
_VERDICTS = st.builds(
    Verdict,
    check=_CHECKS,
    host=_TEXTS,
    verdict=st.sampled_from(OUTCOMES),
    expected=_TEXTS,
    found=_TEXTS,
    unit=_TEXTS,
    reason=_TEXTS,
    fix=_TEXTS,
    device=st.sampled_from(["", "0", "1", "10"]),
    started=st.floats(allow_nan=True),
    seconds=st.floats(allow_nan=True),
)
_HOSTS = st.lists(st.tuples(_TEXTS, st.sampled_from(OUTCOMES)), max_size=3, unique_by=lambda host: host[0])
RUNS = st.builds(bench_run, _HOSTS.map(tuple), st.lists(_VERDICTS, max_size=8).map(tuple))


class Page(HTMLParser):
    """The content of a page: verdicts by host, elements by name, all texts and links."""

    def __init__(self, text: str) -> None:
        """Parse a whole page."""
        super().__init__(convert_charrefs=True)
        self.cells: Counter[Cell] = Counter()
        self.elements: Counter[str] = Counter()
        self.links: list[str] = []
        self.texts: list[str] = []
        self._path: list[tuple[str, dict[str, str | None]]] = []
        self._host, self._check, self._devices, self._column = "", "", list[str](), 0
        self._cell: tuple[str, list[str]] | None = None
        self.feed(text)
        self.close()

    @property
    def text(self) -> str:
        """All text, with blanks as a browser shows them."""
        return " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enter an element."""
        named = dict(attrs)
        self.elements[tag] += 1
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "action", "data", "poster", "background")]
        if tag in ("meta", "link", "img"):
            return
        self._path.append((tag, named))
        if tag == "details" and named.get("class") == "node":
            self._host, self._devices = "", []
        if tag == "tr":
            self._check, self._column = "", -1
        if tag in ("td", "th"):
            self._column += 1
        if tag == "span" and (named.get("class") or "").startswith("v "):
            self._cell = str(named["class"]).removeprefix("v "), []

    def handle_endtag(self, tag: str) -> None:
        """Leave an element, and count the verdict of a cell."""
        assert self._path.pop()[0] == tag
        if tag == "span" and self._cell:
            word, texts = self._cell
            self.cells[self._host, self._check, self._devices[self._column], word, "".join(texts)] += 1
            self._cell = None

    def handle_data(self, data: str) -> None:
        """Store a text by its position."""
        self.texts.append(data)
        if self._cell:
            self._cell[1].append(data)
        if not any(tag == "details" and named.get("class") == "node" for tag, named in self._path):
            return
        inside = [tag for tag, _ in self._path]
        if inside[-1] == "b":
            self._host = data
        elif inside[-2:] == ["tr", "th"] and "thead" in inside:
            self._devices.append(data)
        elif inside[-1] == "th":
            self._check = data


def expected_cells(verdicts: tuple[Verdict, ...]) -> Counter[Cell]:
    """Return the cells that a page must show for verdicts, with invalid characters replaced."""
    cells: Counter[Cell] = Counter()
    for verdict in verdicts:
        word = "" if verdict.verdict == "pass" and verdict.found else verdict.verdict
        text = " ".join(part for part in (word, verdict.found) if part)
        device = visible(f"device {verdict.device}") if verdict.device else "host"
        cells[visible(verdict.host or "(cluster)"), visible(verdict.check), device, verdict.verdict, visible(text)] += 1
    return cells


def visible(text: str) -> str:
    """Return a text with characters that HTML cannot contain replaced."""
    return "".join("\ufffd" if _is_invalid(ord(character)) else character for character in text)


def _is_invalid(code: int) -> bool:
    """Return whether HTML cannot contain a character (html.spec.whatwg.org, "preprocessing the input stream")."""
    control = (code < 0x20 and code not in (0x09, 0x0A)) or 0x7F <= code <= 0x9F
    return control or 0xD800 <= code <= 0xDFFF or 0xFDD0 <= code <= 0xFDEF or code in (0xFFFE, 0xFFFF)
