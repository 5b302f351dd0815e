"""tools/gpu_measure.py and gpu_probe.py, without a GPU."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tools import gpu_measure
from tools.gpu_probe import summary

ROOT = Path(__file__).resolve().parents[2]


def test_steps_run_in_the_order_of_the_patterns(tmp_path: Path) -> None:
    """A pattern matches parts and steps. A step that matches several patterns runs once."""
    steps = gpu_measure.all_steps(tmp_path, tiny=False)
    names = [step.name for step in gpu_measure.select_steps(steps, ["faults/nan", "torchtitan", "faults/n*", "no-such-step"])]

    assert names == ["faults/nan", "torchtitan/1b-none", "torchtitan/1b-none-compile", "torchtitan/1b-selective-compile"]
    assert len({step.name for step in steps}) == len(steps)


def test_the_busy_time_of_a_gpu_is_computed() -> None:
    """Concurrent kernels count once for the busy time, and each for the kernel time."""

    def kernel(name: str, start: int, duration: int, category: str = "kernel") -> dict[str, Any]:
        return {"name": name, "ts": start, "dur": duration, "cat": category, "ph": "X"}

    events = [kernel("a", 0, 1000), kernel("b", 500, 1000), kernel("a", 3000, 1000), kernel("on the host", 0, 9000, "cpu_op")]
    found = summary(events, 1)

    assert (found["kernels"], found["kernel_ms"], found["busy_ms"], found["wall_ms"]) == (3, 3, 2.5, 4)
    assert found["busy_share"] == pytest.approx(0.625)
    assert [(item["name"], item["count"], item["ms"]) for item in found["largest"]] == [("a", 2, 2), ("b", 1, 1)]


def test_a_stopped_run_writes_the_completed_steps(tmp_path: Path) -> None:
    """SIGTERM ends the running step with its processes, and the file marks it as stopped."""
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tools import gpu_measure
def steps(work, tiny):
    yield gpu_measure.Step("a/first", ("true",), 9)
    yield gpu_measure.Step("a/long", ("sh", "-c", "touch begun; exec sleep 600"), 599)
    yield gpu_measure.Step("a/last", ("true",), 9)
gpu_measure.all_steps = lambda work, tiny: list(steps(work, tiny))
sys.exit(gpu_measure.main(["--out", {str(tmp_path / "out")!r}, "--work", {str(tmp_path / "work")!r}]))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    until((tmp_path / "work/steps/a-long/begun").exists, "the long step has begun")
    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 1
    steps = json.loads((tmp_path / "out/measurements.json").read_text("utf-8"))["steps"]
    assert [(step["name"], step["outcome"]) for step in steps] == [("a/first", "done"), ("a/long", "stopped")]
