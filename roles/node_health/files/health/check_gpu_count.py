"""Are all GPUs on the PCI bus? Counts with the program of the role gpu_env, so that both count alike; asks no vendor tool."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from finding import SKIPPED, UNKNOWN, ask, finding, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings

FIX = "see `journalctl -k` and `lspci -nn`; reseat or replace the missing GPU, or correct gpu_env_count in hosts.yaml"
APPLY = "apply the phase gpu again, which brings the program and the facts"


def judge(settings: Settings) -> Iterator[Finding]:
    """Compare the number of GPUs with `expected`, or with what `facts` (gpu.json) says where the inventory expects none (0)."""
    program = settings["program"]
    if not Path(program).is_file():
        verdict = UNKNOWN if settings["expected"] else SKIPPED
        yield finding("gpu_count", verdict, reason=f"there is no {program} that could count", fix=APPLY)
        return
    expected, source = settings["expected"], "hosts.yaml: gpu_env_count"
    if not expected:
        expected, source = _recorded(settings["facts"]), settings["facts"]
    if isinstance(expected, str):
        yield finding("gpu_count", UNKNOWN, source=source, reason=expected, fix=APPLY)
        return
    yield _compare(expected, source, settings)


def _recorded(facts: str) -> int | str:
    """Return how many GPUs the host had when gpu_env last ran; a text is the reason why that is not known."""
    try:
        return int(json.loads(Path(facts).read_text("utf-8"))["count"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{facts} does not say how many GPUs there should be: {error}"


def _compare(expected: int, source: str, settings: Settings) -> Finding:
    """Let the program count and judge; only where the expectation comes from, and what to do, is said here."""
    command = [sys.executable, "-I", settings["program"], "host-env", "--check", "--json", "--site", "-", "--sysfs", settings["sysfs"]]
    status, output = ask(command, json.dumps({"count": expected}))
    fields = {"expected": expected, "unit": "GPUs", "source": source}
    try:
        records = json.loads(output.splitlines()[-1])["verdicts"]
        counted = next(record for record in records if record["check"] == "gpu_count")
        return finding("gpu_count", counted["verdict"], **fields, found=counted["found"], reason=counted["reason"], fix=FIX)
    except (IndexError, ValueError, KeyError, TypeError, StopIteration):
        reason = f"{settings['program']} ended with {status}: {output[-200:]}"
        return finding("gpu_count", UNKNOWN, **fields, reason=reason, fix=APPLY)


if __name__ == "__main__":
    serve(judge)
