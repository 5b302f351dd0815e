"""What every check shares: its settings come as JSON on standard input, its verdict records go as JSON to standard output."""

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
# Fields of the verdict record (primus_bootstrap/core/verdicts.py) that a check fills; the runner adds host, times and schema.
FIELDS = ("check", "verdict", "expected", "found", "unit", "source", "reason", "fix", "device", "serial")


def finding(check: str, verdict: str, **fields: object) -> Finding:
    """Return one verdict record; a pass has no reason and nothing to mend."""
    known = {**dict.fromkeys(FIELDS, ""), "check": check, "verdict": verdict, **{name: str(value) for name, value in fields.items()}}
    if verdict == PASS:
        known.update(reason="", fix="")
    if verdict == SKIPPED:
        known.update(fix="")
    return known


def serve(judge: Callable[[Settings], Iterable[Finding]]) -> None:
    """Read the settings, judge, and print what was found: the whole main program of a check."""
    sys.stdout.write(json.dumps({"verdicts": list(judge(json.load(sys.stdin)))}) + "\n")


def ask(argv: Sequence[str], text: str = "") -> tuple[int, str]:
    """Run a program that only reads, `text` on its standard input; return exit status (127: not installed) and output.

    It has no time limit of its own: the runner kills the check with everything that it started.
    """
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    try:
        done = subprocess.run(argv, capture_output=True, check=False, input=text.encode(), env=environment)
    except FileNotFoundError:
        return 127, f"{argv[0]} is not installed"
    output = done.stdout if done.returncode == 0 else done.stdout + done.stderr
    return done.returncode, output.decode("utf-8", "replace").strip()


def container(root: str = "/") -> str:
    """Return whose container this is, or an empty string on a machine of its own."""
    named = Path(root, "run/systemd/container")
    if named.is_file():
        return named.read_text("utf-8").strip() or "some"
    marks = {"run/.containerenv": "podman", ".dockerenv": "docker"}
    return next((kind for path, kind in marks.items() if Path(root, path).exists()), "")


def mounts(root: str = "/") -> Iterator[tuple[str, str, bool]]:
    """Yield mount point, file system type, and whether it is read-only, as the host's first process sees them.

    Its own view would not do: the unit's confinement makes nearly everything read-only there. Of mounts on one point the
    last one counts, which is why the caller takes the last. Format: proc_pid_mountinfo(5).
    """
    for line in Path(root, "proc/1/mountinfo").read_text("utf-8", "replace").splitlines():
        fields, _, rest = line.partition(" - ")
        point, options = fields.split()[4:6]
        kind, _, super_options = rest.split(" ", 2)
        read_only = "ro" in options.split(",") or "ro" in super_options.split(",")
        yield point.encode().decode("unicode_escape") if "\\" in point else point, kind, read_only
