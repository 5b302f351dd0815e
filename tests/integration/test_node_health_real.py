"""The runner and the gate of the role `node_health` as real programs."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.core.verdicts import FIELDS, parse_verdict
from tests.unit.health_rig import FILES, HEALTH, make_config, write
from tests.unit.test_node_health import document, gate, runner

if TYPE_CHECKING:
    from collections.abc import Mapping

# A hanging check with a hanging child that writes its pid.
HANGS = """import pathlib, subprocess, time
pathlib.Path('{note}').write_text(str(subprocess.Popen(['sleep', '300']).pid))
time.sleep(300)
"""


def run_runner(folder: Path, config: Mapping[str, Any] | str, *, health: Path = HEALTH) -> tuple[int, dict[str, Any]]:
    """Run the runner as the unit does; return its exit code and its file (empty if there is none)."""
    given, out = folder / "health_checks.json", folder / "health.json"
    given.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    command = [sys.executable, "-E", "-s", "-B", str(health / "run_checks.py")]
    command += ["--config", str(given), "--out", str(out), "--locks", str(folder / "locks"), "--aside", str(folder / "aside.json")]
    done = subprocess.run(command, check=False, timeout=60, capture_output=True)
    return done.returncode, json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}


def run_gate(path: Path, *arguments: str) -> tuple[int, str]:
    """Run the gate; return its exit code and output."""
    command = [sys.executable, "-I", str(FILES / "health_gate.py"), "read", "--file", str(path), *arguments]
    done = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)
    return done.returncode, done.stdout.strip()


def with_checks(folder: Path, programs: dict[str, str]) -> Path:
    """Return a copy of the role's programs with some checks replaced."""
    copy = folder / "health"
    shutil.copytree(HEALTH, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return write(copy, {f"check_{name}.py": text for name, text in programs.items()})


def records(document: dict[str, Any], check: str) -> list[dict[str, Any]]:
    """Return the records of one check."""
    return [record for record in document["checks"] if record["check"] == check]


def test_gate_reads_the_file_of_the_runner(tmp_path: Path) -> None:
    """The file of the real checks passes, and every record is complete."""
    status, found = run_runner(tmp_path, make_config())

    assert status == 0
    assert {record["check"]: record["verdict"] for record in found["checks"]}["disk"] == "pass"
    assert found["host"] == "n1"
    assert [set(record) for record in found["checks"]] == [set(FIELDS)] * len(found["checks"])
    assert [parse_verdict(record).to_json() for record in found["checks"]] == found["checks"]
    assert run_gate(tmp_path / "health.json") == (0, "pass")
    assert (tmp_path / "health.json").stat().st_mode & 0o777 == 0o644


def test_fault_reaches_the_gate_with_its_reason(tmp_path: Path) -> None:
    """Missing mounts and low disk space fail at the gate; the records have a fix."""
    mounts = [{"path": "/no/such/mount", "fstype": "fuse.juicefs"}, {"path": "/proc", "fstype": "proc"}]
    _, found = run_runner(tmp_path, make_config(mounts=mounts, disk={"min_free_gib": 1e9, "min_free_inodes_percent": 0.0}))

    status, words = run_gate(tmp_path / "health.json")
    assert found["verdict"] == "fail"
    assert status == 1
    assert "mount /no/such/mount: nothing is mounted at /no/such/mount" in words
    assert "disk /: " in words
    assert [record["verdict"] for record in records(found, "mount")] == ["fail", "pass"]
    assert all(record["fix"] for record in found["checks"] if record["verdict"] == "fail")


SYSTEMCTL = """#!/bin/sh
# Says of each unit what a file of its name says, as `systemctl show` does.
first=1; shift 3
for unit; do
  [ $first = 1 ] || echo
  first=0
  cat "{folder}/$unit" 2> /dev/null || printf 'LoadState=not-found\\nActiveState=inactive\\n'
done
"""


def test_services_of_other_roles_fail_only_after_they_worked(tmp_path: Path) -> None:
    """The host has no storage and no Slurm, then gets them, uses them and loses them."""
    systemctl = write(tmp_path, {"bin/systemctl": SYSTEMCTL.format(folder=tmp_path / "units")}) / "bin/systemctl"
    systemctl.chmod(0o755)
    health = with_checks(tmp_path, {})
    finding = health / "finding.py"
    finding.write_text(finding.read_text(encoding="utf-8").replace('"PATH": "', f'"PATH": "{systemctl.parent}:'), encoding="utf-8")
    config = make_config(
        mounts=[{"path": "/no/such/mount", "fstype": "fuse.juicefs", "unit": "juicefs.service"}], managed_units=["munge.service"]
    )

    def gate_says(**states: str) -> tuple[int, str]:
        for name, words in states.items():
            lines = ["LoadState=loaded", "UnitFileState=enabled", *words.split()]
            write(tmp_path / "units", {f"{name}.service": "\n".join(lines) + "\n"})
        run_runner(tmp_path, config, health=health)
        return run_gate(tmp_path / "health.json")

    started, stopped = "InactiveExitTimestampMonotonic=7 ActiveState=active SubState=running", "ActiveState=inactive SubState=dead"
    assert gate_says() == (0, "pass")
    assert gate_says(munge=f"InactiveExitTimestampMonotonic=0 {stopped}")[0] == 3
    assert gate_says(munge=started) == (0, "pass")
    assert gate_says(juicefs=f"{started.partition(' ')[0]} {stopped} Job=9")[0] == 3
    status, words = gate_says(juicefs=f"{started.partition(' ')[0]} {stopped}")
    assert (status, words) == (1, "mount /no/such/mount: nothing is mounted at /no/such/mount: juicefs.service is inactive (dead)")
    status, words = gate_says(munge="InactiveExitTimestampMonotonic=7 ActiveState=failed SubState=failed")
    assert status == 1
    assert "unit munge.service: munge.service is failed (failed)" in words


def test_hanging_check_is_killed_with_its_children_and_is_unknown(tmp_path: Path) -> None:
    """Only its own time-out passes; the other checks report."""
    note = tmp_path / "child"
    health = with_checks(tmp_path, {"disk": HANGS.format(note=note)})
    started = time.monotonic()
    _, found = run_runner(tmp_path, make_config(timeout_s=1, mounts=[{"path": "/proc", "fstype": ""}]), health=health)

    assert time.monotonic() - started < 20
    assert [(record["verdict"], record["device"]) for record in records(found, "disk")] == [("unknown", "/")]
    assert "did not finish within 1 s and was killed" in records(found, "disk")[0]["reason"]
    assert records(found, "mount")[0]["verdict"] == "pass"
    assert found["verdict"] == "unknown"
    child = Path("/proc", note.read_text(encoding="utf-8"), "stat")
    assert not child.exists() or child.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def test_unkillable_check_is_not_started_again(tmp_path: Path) -> None:
    """Its process holds a lock, so the next run reports unknown at once."""
    (tmp_path / "locks").mkdir()
    with (tmp_path / "locks" / "disk-.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        _, found = run_runner(tmp_path, make_config())
    _, after = run_runner(tmp_path, make_config())

    assert [record["verdict"] for record in records(found, "disk")] == ["unknown"]
    assert "still hangs" in records(found, "disk")[0]["reason"]
    assert [record["verdict"] for record in records(after, "disk")] == ["pass"]


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit('no')",
        "print('all is well')",
        "print('{\"verdicts\": []}')",
        'print(\'{"verdicts": [{"check": "disk", "verdict": "fine"}]}\')',
        'print(\'{"verdicts": [{"check": "disk", "verdict": "pass"}]}\'); raise SystemExit(1)',
    ],
)
def test_invalid_answer_of_a_check_is_unknown(tmp_path: Path, program: str) -> None:
    """A crash, other text, no record, an unknown verdict, and a pass with a failed exit code."""
    _, found = run_runner(tmp_path, make_config(), health=with_checks(tmp_path, {"disk": program}))

    assert [record["verdict"] for record in records(found, "disk")] == ["unknown"]
    assert "run it manually" in records(found, "disk")[0]["fix"]


def test_disabled_check_has_the_reason_of_the_site(tmp_path: Path) -> None:
    """It does not run, and its record is skipped."""
    health = with_checks(tmp_path, {"disk": "raise SystemExit('it ran')"})
    _, found = run_runner(tmp_path, make_config(skip={**make_config()["skip"], "disk": "no disk here"}), health=health)

    assert [(record["verdict"], record["reason"]) for record in records(found, "disk")] == [("skipped", "no disk here")]
    assert found["verdict"] == "pass"


@pytest.mark.parametrize("config", ["", "[]", '{"host": "n1"}'])
def test_invalid_configuration_is_unknown(tmp_path: Path, config: str) -> None:
    """The file is still written, and the gate gives the reason."""
    status, found = run_runner(tmp_path, config)

    assert (status, found["verdict"]) == (0, "unknown")
    assert run_gate(tmp_path / "health.json")[0] == 3
    assert "health_checks.json cannot be used" in run_gate(tmp_path / "health.json")[1]


def test_full_disk_reaches_the_gate(tmp_path: Path) -> None:
    """If the file cannot be written, the result is in the file aside, until the disk has space again. The gate reads the newer file."""
    full, locks, aside = tmp_path / "full" / "health.json", tmp_path / "locks", tmp_path / "aside.json"
    crowded = make_config(disk={"min_free_gib": 1e9, "min_free_inodes_percent": 0.0})
    config = write(tmp_path, {"config.json": json.dumps(crowded)}) / "config.json"
    words = ["--config", str(config), "--out", str(full), "--locks", str(locks), "--aside", str(aside)]

    assert runner.main(words) == 0
    failed = gate.read(full, aside=aside)
    assert (failed.verdict, failed.reason.split(":")[0]) == ("fail", "disk /")
    assert [record["verdict"] for record in failed.checks if record["check"] == "result"] == ["unknown"]

    full.parent.mkdir()
    config.write_text(json.dumps(make_config()), encoding="utf-8")
    assert runner.main(words) == 0
    assert (gate.read(full, aside=aside).verdict, aside.exists()) == ("pass", False)


def test_failed_write_keeps_the_old_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If no file can be written, the exit code is 1, and the old file becomes stale."""
    write(tmp_path, {"config.json": json.dumps(make_config())})
    words = ["--config", str(tmp_path / "config.json"), "--locks", str(tmp_path)]

    status = runner.main([*words, "--out", "/proc/health.json", "--aside", "/proc/aside.json"])
    assert status == 1
    assert "expires" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, "does not exist"),
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"verdict": "pass"}', "cannot be read"),
        ({"written": "soon"}, "cannot be read"),
        ({"schema": "primus.health/2"}, "does not have the schema primus.health/1"),
        ({"verdict": "skipped"}, "does not have the schema primus.health/1"),
        ({"boot_id": "another"}, "before this host last booted"),
        ({"written": time.time() - 3600}, "s old, more than 60 s"),
        ({"written": time.time() + 3600}, "s in the future"),
        (
            {"verdict": "unknown", "checks": [{"check": "clock", "verdict": "unknown", "reason": "nobody knows"}]},
            "clock: nobody knows",
        ),
    ],
)
def test_unreliable_file_is_unknown_at_the_gate(tmp_path: Path, given: str | dict[str, Any] | None, reason: str) -> None:
    """Missing, truncated, malformed, stale, of another boot or in the future: exit code 3 with the reason."""
    path = tmp_path / "health.json"
    if given is not None:
        # Written now, not at collection: a document is valid for a minute.
        path.write_text(given if isinstance(given, str) else json.dumps(document(**given)), encoding="utf-8")
    status, words = run_gate(path)

    assert status == 3
    assert reason in words


def test_reason_of_the_gate_is_one_short_line(tmp_path: Path) -> None:
    """The reason field of Slurm has one line. It lists only failures."""
    checks = [
        {"check": "c", "verdict": "fail", "device": "d", "reason": "a\nb " * 200},
        {"check": "other", "verdict": "pass", "reason": ""},
    ]
    path = write(tmp_path, {"health.json": json.dumps(document(verdict="fail", checks=checks))}) / "health.json"
    status, words = run_gate(path)

    assert status == 1
    assert words.startswith("c d: a b a b")
    assert len(words.splitlines()) == 1
    assert len(words) == 300


def test_gate_prints_the_records(tmp_path: Path) -> None:
    """With --json, the output has verdict, reason, time and records."""
    _, found = run_runner(tmp_path, make_config())
    answer = json.loads(run_gate(tmp_path / "health.json", "--json")[1])

    assert answer == {"verdict": "pass", "reason": "", "written": found["written"], "checks": found["checks"]}
