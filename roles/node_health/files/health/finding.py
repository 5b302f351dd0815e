"""Functions that all checks share. A check reads its settings as JSON from standard input and prints verdict records as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Settings = dict[str, Any]
    Finding = dict[str, str]

PASS, FAIL, UNKNOWN, SKIPPED = "pass", "fail", "unknown", "skipped"
RUN_S = 3600.0
# Fields of the verdict record (primus_bootstrap/core/verdicts.py) that a check fills; the runner adds host, times and schema.
FIELDS = ("check", "verdict", "expected", "found", "unit", "source", "reason", "fix", "device", "serial")


def finding(check: str, verdict: str, **fields: object) -> Finding:
    """Return one verdict record; a pass has no reason and no fix."""
    known = {**dict.fromkeys(FIELDS, ""), "check": check, "verdict": verdict, **{name: str(value) for name, value in fields.items()}}
    if verdict == PASS:
        known.update(reason="", fix="")
    if verdict == SKIPPED:
        known.update(fix="")
    return known


def serve(check: Callable[[Settings], Iterable[Finding]]) -> None:
    """Read the settings, run the check and print its records; the main program of a check."""
    sys.stdout.write(json.dumps({"verdicts": list(check(json.load(sys.stdin)))}) + "\n")


def run(argv: Sequence[str], text: str = "") -> tuple[int, str]:
    """Run a program with `text` as standard input; return the exit code (127: not installed) and the output.

    The time limit only bounds a check that was started by hand: the runner kills a check earlier, with all its child processes.
    """
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    try:
        done = subprocess.run(argv, capture_output=True, check=False, input=text.encode(), env=environment, timeout=RUN_S)
    except FileNotFoundError:
        return 127, f"{argv[0]} is not installed"
    output = done.stdout if done.returncode == 0 else done.stdout + done.stderr
    return done.returncode, output.decode("utf-8", "replace").strip()


def container(root: str = "/") -> str:
    """Return the kind of the container in which this runs; empty outside of containers."""
    named = Path(root, "run/systemd/container")
    if named.is_file():
        return named.read_text("utf-8").strip() or "some"
    kinds = {"run/.containerenv": "podman", ".dockerenv": "docker"}
    return next((kind for path, kind in kinds.items() if Path(root, path).exists()), "")


def mounts(root: str = "/") -> Iterator[tuple[str, str, bool]]:
    """Yield mount point, file system type, and whether it is read-only, in the mount namespace of process 1.

    The sandbox of the unit makes almost everything read-only in its own namespace. If several mounts have one mount point, the last one
    counts. Format: proc_pid_mountinfo(5).
    """
    for line in Path(root, "proc/1/mountinfo").read_text("utf-8", "replace").splitlines():
        fields, _, rest = line.partition(" - ")
        point, options = fields.split()[4:6]
        kind, _, super_options = rest.split(" ", 2)
        read_only = "ro" in options.split(",") or "ro" in super_options.split(",")
        yield point.encode().decode("unicode_escape") if "\\" in point else point, kind, read_only
