"""Module `juicefs_effects` on real files: the exchange between hosts, attacks of users, metrics and dumps."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path

import pytest

from tests.unit.test_role_juicefs_effects import VERIFY, effects, root_only
from tests.unit.test_role_juicefs_effects import folder as folder
from tests.unit.test_role_juicefs_effects import program as program


def test_file_is_exchanged_between_hosts(folder: Path) -> None:
    """The checksums match, and the reader removes the file."""
    written, expected = effects.write("n1", str(folder))
    mode = stat.S_IMODE((folder / "n1").stat().st_mode)
    found = effects.read("n2", str(folder), "n1", expected)

    assert (written["verdict"], found["verdict"], mode) == ("pass", "pass", 0o600)
    assert list(folder.iterdir()) == []


def test_different_content_fails(folder: Path) -> None:
    """The verdict names the writer."""
    _, expected = effects.write("n1", str(folder))
    (folder / "n1").write_bytes(b"others")
    found = effects.read("n2", str(folder), "n1", expected)

    assert (found["verdict"], found["device"]) == ("fail", "n1")


def test_missing_file_fails(folder: Path) -> None:
    """Hosts with different volumes do not see each other's files."""
    found = effects.read("n2", str(folder), "n1", "0" * 64)

    assert found["verdict"] == "fail"
    assert "No such file" in found["reason"]


def test_link_in_place_of_the_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """Attack 2: the writer replaces a link to a root-owned file; the reader refuses it."""
    secret = tmp_path / "secret"
    secret.write_text("of root", encoding="utf-8")
    (folder / "n1").symlink_to(secret)
    refused = effects.read("n2", str(folder), "n1", "0" * 64)
    written, _ = effects.write("n1", str(folder))

    assert refused["verdict"] == "fail"
    assert "a symbolic link" in refused["reason"]
    assert written["verdict"] == "pass"
    assert not (folder / "n1").is_symlink()
    assert secret.read_text(encoding="utf-8") == "of root"


def test_user_owned_folder_is_refused(folder: Path) -> None:
    """Attack 2: a verification folder that is a link or owned by an account is named."""
    kept = folder.rename(folder.with_name("kept"))
    folder.symlink_to(kept)
    through_a_link, _ = effects.write("n1", str(folder))

    assert through_a_link["verdict"] == "fail"
    assert "a symbolic link" in through_a_link["reason"]
    assert list(kept.iterdir()) == []


@root_only
def test_foreign_folder_is_refused(folder: Path) -> None:
    """The message names the current and the required owner."""
    os.chown(folder, 4242, -1)
    refused, _ = effects.write("n1", str(folder))

    assert refused["verdict"] == "fail"
    assert "is owned by uid 4242, not by 0" in refused["reason"]
    assert list(folder.iterdir()) == []


def test_named_pipe_does_not_block_the_read(folder: Path) -> None:
    """Attack 8: it is refused at once."""
    os.mkfifo(folder / "n1")
    found = effects.read("n2", str(folder), "n1", "0" * 64)

    assert found["verdict"] == "fail"
    assert "a named pipe" in found["reason"]


def test_hanging_file_system_fails_after_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains the time."""
    monkeypatch.setattr(effects, "open_folder", lambda *_, **__: time.sleep(60))
    started = time.monotonic()
    found = effects.read("n2", str(folder), "n1", "0" * 64, limit_s=0.2)

    assert found["verdict"] == "fail"
    assert "no answer within" in found["reason"]
    assert time.monotonic() - started < 10


def test_metrics_are_read_from_the_mount(tmp_path: Path) -> None:
    """JuiceFS' metrics pass, other text fails, a missing file is unknown."""
    found = [effects.check_metrics("n1", str(tmp_path))["verdict"]]
    for text in ("juicefs_uptime 3\n", "other 3\n"):
        (tmp_path / ".stats").write_text(text, encoding="utf-8")
        found.append(effects.check_metrics("n1", str(tmp_path))["verdict"])

    assert found == ["unknown", "pass", "fail"]


@root_only
def test_readable_trash_fails() -> None:
    """Attack 7: tested without privileges. A closed or missing trash passes."""
    with tempfile.TemporaryDirectory(prefix="primus-test-") as name:
        top = Path(name)
        top.chmod(0o755)
        found = [effects.check_trash("n1", name)]
        for mode in (0o500, 0o555):
            (top / ".trash").mkdir(exist_ok=True)
            (top / ".trash").chmod(mode)
            found.append(effects.check_trash("n1", name))

    assert [one["verdict"] for one in found] == ["pass", "pass", "fail"]
    assert found[2]["fix"].startswith("sh /usr/local/lib/primus/juicefs_trash.sh ")


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
def test_dump_must_contain_the_file(tmp_path: Path, program: list[str], answer: str, verdict: str) -> None:
    """A complete dump with the new file passes. It goes to standard output only."""
    (tmp_path / "answer").write_text(answer, encoding="utf-8")
    found = effects.check_dump("n1", program, str(tmp_path / "secrets.env"), VERIFY)

    assert found["verdict"] == verdict
    assert (tmp_path / "arguments").read_text(encoding="utf-8").split() == ["dump", program[2], "--subdir=/primus/verify"]


def test_failed_or_late_dump_is_reported(tmp_path: Path, program: list[str]) -> None:
    """The last output is the reason of a failure; a time-out is unknown."""
    (tmp_path / "secrets.env").write_text("", encoding="utf-8")
    refused = effects.check_dump("n1", program, str(tmp_path / "secrets.env"), VERIFY)
    late = effects.check_dump("n1", ["sh", "-c", "sleep 30"], str(tmp_path / "secrets.env"), VERIFY, limit_s=1)

    assert (refused["verdict"], late["verdict"]) == ("fail", "unknown")
    assert "NOAUTH" in refused["reason"]


# --- Entries of users beside the cluster's folders ---
