"""Check that all GPUs are on the PCI bus. Uses the program of the role gpu_env, so that both count alike, and no vendor tool."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from finding import SKIPPED, UNKNOWN, finding, run, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings

FIX = "see `journalctl -k` and `lspci -nn`; reseat or replace the missing GPU, or correct gpu_env_count in hosts.yaml"
APPLY = "apply the phase gpu again, which installs the program and writes the facts"


def check(settings: Settings) -> Iterator[Finding]:
    """Compare the number of GPUs with `expected`, or with that in `facts` (gpu.json) if `expected` is 0."""
    program = settings["program"]
    if not Path(program).is_file():
        verdict = UNKNOWN if settings["expected"] else SKIPPED
        yield finding("gpu_count", verdict, reason=f"{program}, which counts the GPUs, does not exist", fix=APPLY)
        return
    expected, source = settings["expected"], "hosts.yaml: gpu_env_count"
    if not expected:
        expected, source = _recorded(settings["facts"]), settings["facts"]
    if isinstance(expected, str):
        yield finding("gpu_count", UNKNOWN, source=source, reason=expected, fix=APPLY)
        return
    yield _compare(expected, source, settings)


def _recorded(facts: str) -> int | str:
    """Return the number of GPUs when gpu_env last ran, or the reason (a text) why it is unknown."""
    try:
        return int(json.loads(Path(facts).read_text("utf-8"))["count"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{facts} has no number of GPUs: {error}"


def _compare(expected: int, source: str, settings: Settings) -> Finding:
    """Count with the program, and return its verdict with the source of the expected number and the fix."""
    command = [sys.executable, "-I", settings["program"], "host-env", "--check", "--json", "--site", "-", "--sysfs", settings["sysfs"]]
    status, output = run(command, json.dumps({"count": expected}))
    fields = {"expected": expected, "unit": "GPUs", "source": source}
    try:
        records = json.loads(output.splitlines()[-1])["verdicts"]
        counted = next(record for record in records if record["check"] == "gpu_count")
        return finding("gpu_count", counted["verdict"], **fields, found=counted["found"], reason=counted["reason"], fix=FIX)
    except (IndexError, ValueError, KeyError, TypeError, StopIteration):
        reason = f"{settings['program']} exited with {status}: {output[-200:]}"
        return finding("gpu_count", UNKNOWN, **fields, reason=reason, fix=APPLY)


if __name__ == "__main__":
    serve(check)
