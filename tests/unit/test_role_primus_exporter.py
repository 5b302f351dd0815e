"""The program `primus_exporter.py`, run on fake hosts with fake tools."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = content.roles_dir() / "primus_exporter" / "files" / "primus_exporter.py"
effects: Any = load_role_module("primus_exporter", "primus_exporter_effects")
ME = pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return an empty host."""
    return Host(tmp_path)


class Host:
    """A fake host in a folder: settings, a PCI bus, tools."""

    def __init__(self, root: Path) -> None:
        """Store the folder."""
        self.root = root
        (root / "tools").mkdir()
        names = {"gate": "gate.py", "health": "health.json", "quarantine": "quarantine.json", "certificate": "host.crt", "sysfs": "sys"}
        paths = {name: str(root / part) for name, part in names.items()}
        self.settings = {
            **paths,
            "output": str(root / "primus.prom"),
            "timeout_s": 10,
            "slurm": False,
            "training_folder": str(root / "training"),
            "jobs_folder": str(root / "jobs"),
            "training_max_age_s": 3600,
            "accounts": [ME, "daemon"],
        }

    def write(self, path: str, text: str) -> Path:
        """Write a file."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return place

    def tool(self, name: str, text: str) -> None:
        """Write a tool: a shell script."""
        self.write(f"tools/{name}", f"#!/bin/sh\n{text}\n").chmod(0o755)

    def gpu(self, address: str, vendor: str, **files: str) -> None:
        """Add a GPU with the files of its driver to the PCI bus."""
        for name, text in {"vendor": vendor, "class": "0x120000", **files}.items():
            self.write(f"sys/bus/pci/devices/{address}/{name.replace('__', '/')}", f"{text}\n")

    def run(self) -> tuple[dict[str, float], str]:
        """Run the program; return values by series, and the error messages."""
        path = self.write("settings.json", json.dumps(self.settings))
        environment = {**os.environ, "PATH": f"{self.root / 'tools'}:{os.environ['PATH']}"}
        command = [sys.executable, "-I", "-B", str(PROGRAM), str(path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        lines = [line for line in (self.root / "primus.prom").read_text("utf-8").splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}, done.stderr


@pytest.mark.parametrize(
    ("owner", "mode", "verdict"), [(0, 0o755, "pass"), (0, 0o1777, "fail"), (0, 0o777, "fail"), (1, 0o755, "fail"), (0, None, "fail")]
)
def test_parent_of_account_folders_must_be_root_owned(owner: int, mode: int | None, verdict: str) -> None:
    """Other owners, and modes that let other accounts write, fail."""
    verdicts = effects.Verdicts("primus_exporter", "n1")
    effects.check_folder(verdicts, "/var/lib/primus/training", owner, mode)
    found = verdicts.records[0]

    assert found["verdict"] == verdict
    assert verdict == "pass" or found["fix"].startswith("apply the phase monitoring")


@pytest.mark.parametrize(
    ("content_", "timer", "expected"),
    [
        (
            'primus_exporter_source_up{source="gpu"} 1.0\nprimus_exporter_written_timestamp_seconds 100.0\n',
            "active",
            ["pass", "pass", "pass"],
        ),
        (
            'primus_exporter_source_up{source="gpu"} 0.0\nprimus_exporter_written_timestamp_seconds 100.0\n',
            "active",
            ["pass", "pass", "unknown"],
        ),
        ("primus_exporter_written_timestamp_seconds 50.0\n", "inactive", ["fail", "fail"]),
        ("", "active", ["fail", "pass"]),
    ],
)
def test_age_of_the_output_and_state_of_the_timer_are_checked(content_: str, timer: str, expected: list[str]) -> None:
    """An old file or a stopped timer fails. A source without data is unknown."""
    verdicts = effects.Verdicts("primus_exporter", "n1")
    effects.check_output(verdicts, content_, 100.0, timer, "")

    assert [one["verdict"] for one in verdicts.records] == expected
