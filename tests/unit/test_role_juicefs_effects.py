"""The module `juicefs_effects`: the mount as programs see it, and a file that goes from one host to another."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

effects: Any = load_role_module("juicefs", "juicefs_effects")

MOUNTS = "/dev/sda1 / ext4 rw 0 0\nJuiceFS:jfs /jfs fuse.juicefs rw,nosuid 0 0\n"


def test_a_mounted_volume_passes_and_a_bare_folder_fails() -> None:
    """What lies on the folder last counts; a folder with nothing on it is a fail."""
    covered = MOUNTS + "tmpfs /jfs tmpfs rw 0 0\n"
    found = [effects.look_at_mount("n1", "/jfs", mounts)["verdict"] for mounts in (MOUNTS, covered, "")]

    assert found == ["pass", "fail", "fail"]


def test_what_one_writes_another_reads(tmp_path: Path) -> None:
    """The sum of the writer is the sum of the reader, and the reader removes the file."""
    written, expected = effects.write("n1", str(tmp_path))
    seen = effects.read("n2", str(tmp_path), "n1", expected)

    assert (written["verdict"], seen["verdict"]) == ("pass", "pass")
    assert list((tmp_path / effects.FOLDER).iterdir()) == []


def test_a_file_that_differs_fails(tmp_path: Path) -> None:
    """Other bytes than were written are a fail that names the writer."""
    _, expected = effects.write("n1", str(tmp_path))
    (tmp_path / effects.FOLDER / "n1").write_bytes(b"others")
    seen = effects.read("n2", str(tmp_path), "n1", expected)

    assert (seen["verdict"], seen["device"]) == ("fail", "n1")


def test_a_file_that_is_not_there_fails(tmp_path: Path) -> None:
    """Two hosts with different volumes do not see each other's files."""
    seen = effects.read("n2", str(tmp_path), "n1", "0" * 64)

    assert seen["verdict"] == "fail"
    assert "No such file" in seen["reason"]


def test_what_cannot_be_compared_is_not_judged(tmp_path: Path) -> None:
    """A neighbour that wrote nothing gives unknown, a host alone skipped; both say why."""
    silent = effects.read("n2", str(tmp_path), "n1", "")
    alone = effects.read("n2", str(tmp_path), "n2", "0" * 64)

    assert [silent["verdict"], alone["verdict"]] == ["unknown", "skipped"]
    assert silent["reason"]
    assert alone["reason"]


def test_a_file_system_that_hangs_is_given_up(tmp_path: Path) -> None:
    """A read that never comes back ends after the limit and fails with the time."""
    (tmp_path / effects.FOLDER).mkdir()
    os.mkfifo(tmp_path / effects.FOLDER / "n1")
    started = time.monotonic()
    seen = effects.read("n2", str(tmp_path), "n1", "0" * 64, limit_s=1)

    assert seen["verdict"] == "fail"
    assert "no answer within 1 s" in seen["reason"]
    assert time.monotonic() - started < 10


def test_metrics_that_cannot_be_reached_are_unknown() -> None:
    """A closed port says nothing about the mount."""
    assert effects.look_at_metrics("n1", "http://127.0.0.1:1/metrics")["verdict"] == "unknown"


@pytest.mark.parametrize("verdict", ["pass", "fail"])
def test_a_record_has_what_the_report_needs(verdict: str) -> None:
    """Every record names check, host, verdict and schema."""
    entry = effects.record("n1", "mounted", verdict)

    assert {"check", "host", "verdict", "schema", "source"} <= set(entry)


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """Return a program that dumps as juicefs 1.4 does: to standard output, or by replacing the file that it is given."""
    (tmp_path / "secrets.env").write_text("# comment\nMETA_PASSWORD=secret=1\n", encoding="utf-8")
    path = tmp_path / "juicefs"
    path.write_text(
        f"""#!/bin/sh
echo "$@" > {tmp_path}/arguments
[ "$META_PASSWORD" = secret=1 ] || {{ echo '<FATAL>: NOAUTH' >&2; exit 1; }}
[ -z "$4" ] || {{ echo dump > "$4.tmp"; mv "$4.tmp" "$4"; exit 0; }}
cat {tmp_path}/answer
""",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return [str(path), "dump", "rediss://db:6379/1?tls-ca-cert-file=/etc/juicefs/redis-ca.crt"]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ('{"Setting": {}, "FSTree": {"attr": {}, "entries": {"n1": {"attr": {}}}}}', "pass"),
        ('[xorm] [info]  2026/11/24 14:00:36.09 PING DATABASE mysql\n{"FSTree": {"attr": {}, "entries": {"n1": {"attr": {}}}}}', "pass"),
        ('{"Setting": {}, "FSTree": {"attr": {}, "entries": {}}}', "fail"),
        ('{"Setting": {"Na', "fail"),
        ("[xorm] [info]  2026/11/24 14:00:36.09 PING DATABASE mysql", "fail"),
    ],
)
def test_a_dump_must_hold_the_file(tmp_path: Path, program: list[str], answer: str, verdict: str) -> None:
    """A dump that is whole and holds what was just written passes; it goes to standard output, and to no file whatever."""
    (tmp_path / "answer").write_text(answer, encoding="utf-8")
    found = effects.dump("n1", program, str(tmp_path / "secrets.env"))

    assert found["verdict"] == verdict
    assert (tmp_path / "arguments").read_text(encoding="utf-8").split() == ["dump", program[2], "--subdir=/.primus-verify"]


def test_a_dump_that_ends_with_an_error_or_late_is_told(tmp_path: Path, program: list[str]) -> None:
    """The program's last words are the reason of a fail; one that does not end is unknown."""
    (tmp_path / "secrets.env").write_text("", encoding="utf-8")
    refused = effects.dump("n1", program, str(tmp_path / "secrets.env"))
    late = effects.dump("n1", ["sh", "-c", "sleep 30"], str(tmp_path / "secrets.env"), limit_s=1)

    assert (refused["verdict"], late["verdict"]) == ("fail", "unknown")
    assert "NOAUTH" in refused["reason"]
