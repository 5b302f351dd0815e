"""The fields and types of a line with the schema `primus.result/1`."""

from __future__ import annotations

import json
import statistics
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

KINDS: dict[str, tuple[type, ...]] = {
    "schema": (str,),
    "benchmark": (str,),
    "metric": (str,),
    "value": (float, int, type(None)),
    "unit": (str,),
    "better": (str,),
    "sizes": (dict,),
    "host": (str,),
    "device": (str,),
    "model": (str,),
    "serial": (str,),
    "ranks": (int,),
    "repeats": (int,),
    "samples": (list,),
    "p95": (float, int, type(None)),
    "correct": (bool, type(None)),
    "error": (str,),
    "versions": (dict,),
    "time": (str,),
    "seconds": (float, int),
    "options": (dict,),
}
VERSIONS = {"python", "torch", "cuda", "rocm", "driver", "git_commit"}


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run after checking each of them."""
    path = folder / "results.jsonl"
    lines = [json.loads(line, parse_constant=_no_json) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    for line in lines:
        check_line(line)
    return lines


def check_line(line: dict[str, Any]) -> None:
    """Check the fields of one line."""
    assert set(line) == set(KINDS)
    assert {name: value for name, value in line.items() if not isinstance(value, KINDS[name])} == {}
    assert (line["schema"], line["better"] in {"higher", "lower"}) == ("primus.result/1", True)
    assert set(line["versions"]) == VERSIONS
    assert all(value is None or isinstance(value, str) for value in line["versions"].values())
    assert all(isinstance(value, int | float | str) for value in line["sizes"].values())
    assert datetime.fromisoformat(line["time"]).utcoffset() is not None
    assert line["host"]
    assert line["options"]
    if line["error"]:
        assert (line["value"], line["samples"], line["repeats"], line["correct"]) == (None, [], 0, None)
    else:
        assert 0 < len(line["samples"]) <= 200
        assert line["value"] == statistics.median(line["samples"])
        assert min(line["samples"]) <= line["p95"] <= max(line["samples"])


def _no_json(text: str) -> float:
    raise AssertionError(f"{text} is not JSON")
