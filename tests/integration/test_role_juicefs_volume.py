"""Module `juicefs_volume`: formats a volume once and explains failures."""

from __future__ import annotations

import stat
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

volume: Any = load_role_module("juicefs", "juicefs_volume")
program: Any = sys.modules["ansible.module_utils.juicefs_program"]

# Output of the real programs; one line keeps its time stamp.
EMPTY_0_14 = "2026/11/21 09:10:33.942486 juicefs[480] <FATAL>: load setting: no volume found\n"
EMPTY_1_4 = "<FATAL>: get status: load setting: database is not formatted, please run `juicefs format ...` first [status@status.go:84]\n"
REFUSED = "<FATAL>: get status: load setting: WRONGPASS invalid username-password pair or user is disabled. [status@status.go:84]\n"
GONE = "<FATAL>: load setting: dial tcp 127.0.0.1:6398: connect: connection refused\n"
FACTS = '"Name": "jfs", "UUID": "bde7974d", "Storage": "sftp", "Bucket": "n1:/objects/"'
SETTING = f'{{\n  "Setting": {{\n {FACTS} }},\n  "Sessions": []\n}}\n'
FOUND = f"2026/11/21 09:10:34 juicefs[511] <INFO>: Meta address: redis://n1:6379/1\n{SETTING}<INFO>: Ping redis latency: 21us\n"


def make_program(folder: Path, status: str, *, after: str = FOUND, format_status: int = 0) -> dict[str, Any]:
    """Write a program that answers `status` before and after `format`, and records its calls."""
    path = folder / "juicefs"
    (folder / "before").write_text(status, encoding="utf-8")
    (folder / "after").write_text(after, encoding="utf-8")
    text = f"""#!/bin/sh
cd {folder}
echo "$@" >> calls
env | sort > environment
[ "$1" = status ] || {{ cp after before; echo '<FATAL>: object storage: unable to authenticate'; exit {format_status}; }}
cat before
grep -q Setting before
"""
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    facts = {"meta_url": "redis://n1:6379/1", "name": "jfs", "storage": "sftp", "bucket": "n1:/objects/", "options": ["--trash-days=7"]}
    return {"program": str(path), **facts}


def calls(folder: Path) -> list[str]:
    """Return the recorded arguments."""
    return (folder / "calls").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("empty", [EMPTY_0_14, EMPTY_1_4])
def test_empty_engine_is_formatted_once(tmp_path: Path, empty: str) -> None:
    """Both messages for a missing volume lead to one format; the next run finds the volume."""
    parameters = make_program(tmp_path, empty)

    assert volume.ensure_volume(parameters, {}) == (True, "bde7974d")
    assert volume.ensure_volume(parameters, {}) == (False, "bde7974d")
    assert [call for call in calls(tmp_path) if call.startswith("format")] == [
        "format --storage=sftp --bucket=n1:/objects/ --trash-days=7 redis://n1:6379/1 jfs"
    ]


def test_secrets_are_passed_in_the_environment(tmp_path: Path) -> None:
    """They are not in the arguments; no other variable is passed."""
    parameters = make_program(tmp_path, EMPTY_1_4)
    volume.ensure_volume(parameters, {"META_PASSWORD": "hidden-meta", "SECRET_KEY": "hidden-key"})
    environment = (tmp_path / "environment").read_text(encoding="utf-8")

    assert "META_PASSWORD=hidden-meta" in environment
    assert "hidden" not in " ".join(calls(tmp_path))


@pytest.mark.parametrize(("name", "value"), [("name", "other"), ("storage", "s3"), ("bucket", "n2:/objects/")])
def test_other_volume_is_never_formatted(tmp_path: Path, name: str, value: str) -> None:
    """A different name, storage or bucket is an error with a fix."""
    parameters = {**make_program(tmp_path, FOUND), name: value}

    with pytest.raises(volume.VolumeError, match=f"{name} .* instead of '{value}'.* Fix: "):
        volume.ensure_volume(parameters, {})

    assert {call.split()[0] for call in calls(tmp_path)} == {"status"}


@pytest.mark.parametrize(("answer", "words"), [(REFUSED, "refuses the password"), (GONE, "connection refused"), ("", "it printed nothing")])
def test_unavailable_engine_is_not_formatted(tmp_path: Path, answer: str, words: str) -> None:
    """A rejected password, a stopped engine and a time-out are distinct errors."""
    parameters = make_program(tmp_path, answer)

    with pytest.raises(volume.VolumeError, match=f"{words}.* Fix: "):
        volume.ensure_volume(parameters, {})

    assert {call.split()[0] for call in calls(tmp_path)} == {"status"}


def test_failed_format_reports_the_cause(tmp_path: Path) -> None:
    """The last output of the program is the cause."""
    parameters = make_program(tmp_path, EMPTY_1_4, format_status=1)

    with pytest.raises(volume.VolumeError, match="object storage: unable to authenticate"):
        volume.ensure_volume(parameters, {})


def test_hanging_engine_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains the time."""
    parameters = make_program(tmp_path, EMPTY_1_4)
    (tmp_path / "juicefs").write_text("#!/bin/sh\nexec sleep 30\n", encoding="utf-8")
    monkeypatch.setattr(program, "_STATUS_S", 0.3)

    with pytest.raises(volume.VolumeError, match="no answer within 0 s"):
        volume.ensure_volume(parameters, {})


def test_environment_file_is_parsed_as_by_systemd(tmp_path: Path) -> None:
    """Comments are skipped; values may contain equals signs."""
    path = tmp_path / "secrets.env"
    path.write_text("# Ansible managed = yes\nMETA_PASSWORD=a=b#c\nSECRET_KEY=\n", encoding="utf-8")

    assert volume.read_environment(str(path)) == {"META_PASSWORD": "a=b#c", "SECRET_KEY": ""}


def test_message_of_a_program_that_is_ended_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JuiceFS 0.14 retries for minutes if the engine refuses the password, and prints the reason first."""
    monkeypatch.setattr(program, "_STATUS_S", 0.5)
    path = tmp_path / "juicefs"
    path.write_text("#!/bin/sh\necho '<ERROR>: NOAUTH Authentication required.' >&2\nexec sleep 60\n", encoding="utf-8")
    path.chmod(0o755)

    with pytest.raises(volume.VolumeError, match="refuses the password"):
        volume.read_settings({"program": str(path), "meta_url": "redis://n1:6379/1"}, {})
