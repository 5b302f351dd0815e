"""Reading result lines: a valid line is read, and an invalid one becomes a verdict."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from primus_bootstrap.bench.results.reader import STACK, canonical, parse_lines, read_results

if TYPE_CHECKING:
    from pathlib import Path


def _line(**changes: Any) -> dict[str, Any]:
    """Return a line as the benchmarks write it."""
    return {
        "benchmark": "gemm",
        "metric": "tflop_per_s",
        "value": 2.0,
        "unit": "TFLOP/s",
        "better": "higher",
        "sizes": {"n": 8, "m": 4, "dtype": "bf16"},
        "host": "node1",
        "device": "0",
        "model": "AMD Instinct MI300X",
        "serial": "abc",
        "ranks": 1,
        "repeats": 3,
        "samples": [1.0, 2.0, 3.0],
        "p95": 3.0,
        "correct": True,
        "error": "",
        "versions": {"python": "3.11", "torch": "2.13", "cuda": None, "rocm": "7.0", "driver": "6.14", "git_commit": None},
        "time": "2026-11-22T12:00:00+00:00",
        "seconds": 1.5,
        "options": {"repeats": 3},
        "schema": "primus.result/1",
        **changes,
    }


def test_a_line_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Sizes become canonical, and versions that do not affect speed are left out."""
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(_line()) + "\n\n" + json.dumps(_line(value=None, samples=[], repeats=0, error="no GPU")) + "\n")

    reading = read_results(path)

    assert reading.problems == ()
    good, failed = reading.results
    assert good.series == ("gemm", "tflop_per_s", '{"dtype":"bf16","m":4,"n":8}', 1)
    assert good.series.text() == "tflop_per_s dtype=bf16 m=4 n=8"
    assert (good.value, good.samples, good.repeats, good.device, good.key) == (2.0, (1.0, 2.0, 3.0), 3, "0", "abc")
    assert dict(zip(STACK, good.stack, strict=True)) == {"torch": "2.13", "cuda": "", "rocm": "7.0", "driver": "6.14"}
    assert good.started == 1_795_348_800.0
    assert (failed.value, failed.error) == (None, "no GPU")


def test_a_device_without_a_serial_number_has_the_key_of_its_host_and_index() -> None:
    """The history finds it by this key."""
    reading = parse_lines([json.dumps(_line(serial="")).encode()], name="results.jsonl")

    assert reading.results[0].key == "node1:0"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"schema": "primus.result/2"}, "schema is 'primus.result/2', not primus.result/1"),
        ({"value": "fast"}, "value is 'fast', not a number"),
        ({"value": True}, "value is True, not a number"),
        ({"value": 0}, "value 0.0, or a sample, is not possible in TFLOP/s"),
        ({"value": 7.0}, "value is 7.0, but the median of its samples is 2"),
        ({"value": None}, "has neither a value nor an error"),
        ({"error": "out of memory"}, "has a value and an error (out of memory)"),
        ({"samples": [1.0, -1.0, 2.0], "value": 1.0}, "value 1.0, or a sample, is not possible in TFLOP/s"),
        ({"samples": [2.0] * 4}, "has 4 samples, but 3 repeats"),
        ({"samples": [2.0] * 201, "repeats": 201}, "samples: 201, more than 200"),
        ({"repeats": True}, "repeats is True, not a whole number from 0"),
        ({"ranks": 0}, "ranks is 0, not a whole number from 1"),
        ({"better": "faster"}, "better is 'faster', not higher or lower"),
        ({"correct": "yes"}, "correct is 'yes', not true, false or null"),
        ({"host": ""}, "host is empty"),
        ({"device": 0}, "device is 0, not of type str"),
        ({"time": "yesterday"}, "time is 'yesterday', not ISO 8601"),
        ({"sizes": [1]}, "sizes is [1], not of type dict"),
    ],
)
def test_an_invalid_line_is_unknown_with_its_line_number(changes: dict[str, Any], reason: str) -> None:
    """The verdict names the field and the host of the line, and valid lines are kept."""
    lines = [json.dumps(_line()).encode(), json.dumps({**_line(host="node7"), **changes}).encode()]

    reading = parse_lines(lines, name="results.jsonl", host="node1")

    (problem,) = reading.problems
    assert len(reading.results) == 1
    assert (problem.verdict, problem.check, problem.found) == ("unknown", "bench_gemm", "results.jsonl:2")
    assert problem.reason == f"results.jsonl:2: {reason}"
    assert problem.host == ("node1" if "host" in changes else "node7")


@pytest.mark.parametrize("name", list(_line()))
def test_a_missing_field_is_unknown(name: str) -> None:
    """Except for fields that the evaluation does not use (p95, options)."""
    data = _line()
    del data[name]

    reading = parse_lines([json.dumps(data).encode()], name="results.jsonl", host="node1")

    assert bool(reading.problems) == (name not in {"p95", "options"})


@pytest.mark.parametrize(
    "line", [b'{"schema": "primus.res', b"[1]", b"\xff\xfe", b"7", b'{"value": NaN}', b'{"value": 1e999}', b"[" * 100_000]
)
def test_other_content_is_unknown_for_the_host_of_the_file(line: bytes) -> None:
    """Incomplete lines, other JSON, binary data and invalid numbers are one verdict each."""
    (problem,) = parse_lines([line], name="results.jsonl", host="node1").problems

    assert (problem.verdict, problem.host, problem.check) == ("unknown", "node1", "bench_results")


def test_a_file_that_is_missing_or_empty_is_unknown(tmp_path: Path) -> None:
    """A benchmark without results did not pass."""
    (tmp_path / "empty").write_bytes(b"\n")

    missing, empty = (read_results(tmp_path / name, host="node1") for name in ("missing", "empty"))

    assert [read.problems[0].verdict for read in (missing, empty)] == ["unknown", "unknown"]
    assert missing.problems[0].reason.endswith("cannot read it: No such file or directory")
    assert empty.problems[0].reason.endswith("it contains no result")


@given(st.lists(st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"")), max_size=8))
def test_no_line_is_ever_lost(garbage: list[bytes]) -> None:
    """Every line that is not blank is a result or a problem."""
    lines = [json.dumps(_line()).encode(), *garbage]

    reading = parse_lines(lines, name="results.jsonl")

    assert len(reading.results) + len(reading.problems) == sum(bool(line.strip()) for line in lines)


@given(st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=5)), max_size=5))
def test_sizes_are_the_same_in_any_order(sizes: dict[str, int | str]) -> None:
    """The order of the keys does not matter."""
    assert canonical(sizes) == canonical(dict(reversed(sizes.items())))
