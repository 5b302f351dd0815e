"""The module `juicefs_effects`: the mount as programs see it, and a file that goes from one host to another."""

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


def test_what_one_writes_another_reads(folder: Path) -> None:
    """The sum of the writer is the sum of the reader, and the reader removes the file."""
    written, expected = effects.write("n1", str(folder))
    mode = stat.S_IMODE((folder / "n1").stat().st_mode)
    seen = effects.read("n2", str(folder), "n1", expected)

    assert (written["verdict"], seen["verdict"], mode) == ("pass", "pass", 0o600)
    assert list(folder.iterdir()) == []


def test_a_file_that_differs_fails(folder: Path) -> None:
    """Other bytes than were written are a fail that names the writer."""
    _, expected = effects.write("n1", str(folder))
    (folder / "n1").write_bytes(b"others")
    seen = effects.read("n2", str(folder), "n1", expected)

    assert (seen["verdict"], seen["device"]) == ("fail", "n1")


def test_a_file_that_is_not_there_fails(folder: Path) -> None:
    """Two hosts with different volumes do not see each other's files."""
    seen = effects.read("n2", str(folder), "n1", "0" * 64)

    assert seen["verdict"] == "fail"
    assert "No such file" in seen["reason"]


def test_a_link_in_place_of_the_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    """Attack 2: a link to a file of root's is replaced by the file that verify writes, and refused where it reads."""
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


def test_nothing_is_written_into_a_folder_of_users(folder: Path) -> None:
    """Attack 2: a folder of verify that is a link or another account's is refused by name."""
    kept = folder.rename(folder.with_name("kept"))
    folder.symlink_to(kept)
    through_a_link, _ = effects.write("n1", str(folder))

    assert through_a_link["verdict"] == "fail"
    assert "a symbolic link" in through_a_link["reason"]
    assert list(kept.iterdir()) == []


@root_only
def test_nothing_is_written_into_a_folder_of_another_account(folder: Path) -> None:
    """It says whose it is, and who is to own it."""
    os.chown(folder, 4242, -1)
    refused, _ = effects.write("n1", str(folder))

    assert refused["verdict"] == "fail"
    assert "account number 4242, not to 0" in refused["reason"]
    assert list(folder.iterdir()) == []


def test_a_named_pipe_does_not_hold_the_read(folder: Path) -> None:
    """Attack 8: it is refused at once."""
    os.mkfifo(folder / "n1")
    seen = effects.read("n2", str(folder), "n1", "0" * 64)

    assert seen["verdict"] == "fail"
    assert "a named pipe" in seen["reason"]


def test_a_file_system_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that never comes back ends after the limit and fails with the time."""
    monkeypatch.setattr(effects, "open_folder", lambda *_, **__: time.sleep(60))
    started = time.monotonic()
    seen = effects.read("n2", str(folder), "n1", "0" * 64, limit_s=0.2)

    assert seen["verdict"] == "fail"
    assert "no answer within" in seen["reason"]
    assert time.monotonic() - started < 10


def test_metrics_are_read_from_the_mount(tmp_path: Path) -> None:
    """The file of metrics counts: JuiceFS' numbers pass, other text fails, and a mount without one is unknown."""
    found = [effects.look_at_metrics("n1", str(tmp_path))["verdict"]]
    for text in ("juicefs_uptime 3\n", "other 3\n"):
        (tmp_path / ".stats").write_text(text, encoding="utf-8")
        found.append(effects.look_at_metrics("n1", str(tmp_path))["verdict"])

    assert found == ["unknown", "pass", "fail"]


@root_only
def test_a_trash_that_accounts_can_read_fails() -> None:
    """Attack 7: the look is made without rights. A trash that is closed, or that is not there, passes."""
    with tempfile.TemporaryDirectory(prefix="primus-test-") as name:
        top = Path(name)
        top.chmod(0o755)
        found = [effects.look_at_trash("n1", name)]
        for mode in (0o500, 0o555):
            (top / ".trash").mkdir(exist_ok=True)
            (top / ".trash").chmod(mode)
            found.append(effects.look_at_trash("n1", name))

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
def test_a_dump_must_hold_the_file(tmp_path: Path, program: list[str], answer: str, verdict: str) -> None:
    """A dump that is whole and holds what was just written passes; it goes to standard output, and to no file whatever."""
    (tmp_path / "answer").write_text(answer, encoding="utf-8")
    found = effects.dump("n1", program, str(tmp_path / "secrets.env"), VERIFY)

    assert found["verdict"] == verdict
    assert (tmp_path / "arguments").read_text(encoding="utf-8").split() == ["dump", program[2], "--subdir=/primus/verify"]


def test_a_dump_that_ends_with_an_error_or_late_is_told(tmp_path: Path, program: list[str]) -> None:
    """The program's last words are the reason of a fail; one that does not end is unknown."""
    (tmp_path / "secrets.env").write_text("", encoding="utf-8")
    refused = effects.dump("n1", program, str(tmp_path / "secrets.env"), VERIFY)
    late = effects.dump("n1", ["sh", "-c", "sleep 30"], str(tmp_path / "secrets.env"), VERIFY, limit_s=1)

    assert (refused["verdict"], late["verdict"]) == ("fail", "unknown")
    assert "NOAUTH" in refused["reason"]


# --- What users put beside the cluster's folders ---
