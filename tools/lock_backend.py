#!/usr/bin/env python3
"""Write the list of packages of a training backend with the hashes of their wheels: tools/lock_backend.py NAME [NAME==VERSION]...

Without packages, those of the existing list are looked up again. pip reports the hashes, for Linux on x86-64 and each Python below, or
the one that a comment `# python 3.12` of the list names.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "primus_bootstrap" / "launch" / "data" / "backends"
PYTHONS = ("3.11", "3.12")
PYTHON = "# python "  # the comment with the only release of Python that a backend supports
LIMIT_S = 1800


def hashes(pins: list[str], python: str, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each package's wheel for a release of Python, by NAME==VERSION."""
    listed, report = folder / "pins.txt", folder / "report.json"
    listed.write_text("\n".join(pins), "utf-8")
    words = ["--dry-run", "--no-deps", "--ignore-installed", "--ignore-requires-python", "--only-binary=:all:", "--python-version", python]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        *words,
        "--target",
        str(folder / "none"),
        "--report",
        str(report),
        "-r",
        str(listed),
    ]
    subprocess.run(command, check=True, timeout=LIMIT_S)
    items = json.loads(report.read_text("utf-8"))["install"]
    return {pin(item["metadata"]): item["download_info"]["archive_info"]["hashes"]["sha256"] for item in items}


def pin(metadata: dict[str, str]) -> str:
    """Return NAME==VERSION of a package."""
    return f"{metadata['name'].lower().replace('_', '-')}=={metadata['version']}"


def main(name: str, pins: list[str]) -> None:
    """Write the list."""
    path = FOLDER / f"{name}.txt"
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    comments = [line for line in lines if line.startswith("#")]
    pins = pins or [line.split()[0] for line in lines if "==" in line and not line.startswith("#")]
    found: dict[str, set[str]] = {}
    only = [line[len(PYTHON) :] for line in comments if line.startswith(PYTHON)]
    for python in only or PYTHONS:
        with tempfile.TemporaryDirectory() as folder:
            for item, digest in hashes(pins, python, Path(folder)).items():
                found.setdefault(item, set()).add(digest)
    body = [f"{item} " + " ".join(f"--hash=sha256:{digest}" for digest in sorted(found[item])) for item in sorted(found)]
    path.write_text("\n".join([*comments, *body]) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
