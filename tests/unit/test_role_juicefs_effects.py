"""The module `juicefs_effects`: the mount as programs see it, and a file that goes from one host to another."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.role_module import load_role_module

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other accounts")
effects: Any = load_role_module("juicefs", "juicefs_effects")

VERIFY = "primus/verify"
MOUNTS = "/dev/sda1 / ext4 rw 0 0\nJuiceFS:jfs /jfs fuse.juicefs rw,nosuid 0 0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of verify on a mount."""
    path = tmp_path / "jfs" / VERIFY
    path.mkdir(parents=True, mode=0o700)
    return path


def test_a_mounted_volume_passes_and_a_bare_folder_fails() -> None:
    """What lies on the folder last counts; a folder with nothing on it is a fail."""
    covered = MOUNTS + "tmpfs /jfs tmpfs rw 0 0\n"
    found = [effects.look_at_mount("n1", "/jfs", mounts)["verdict"] for mounts in (MOUNTS, covered, "")]

    assert found == ["pass", "fail", "fail"]


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


def test_what_cannot_be_compared_is_not_judged(folder: Path) -> None:
    """A neighbour that wrote nothing gives unknown, a host alone skipped; both say why."""
    silent = effects.read("n2", str(folder), "n1", "")
    alone = effects.read("n2", str(folder), "n2", "0" * 64)

    assert [silent["verdict"], alone["verdict"]] == ["unknown", "skipped"]
    assert silent["reason"]
    assert alone["reason"]


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


SOCKETS = """\
LISTEN 0      4096   127.0.0.1:6061 0.0.0.0:* users:(("juicefs",pid=7,fd=8))
LISTEN 0      4096   127.0.0.1:9567 0.0.0.0:* users:(("juicefs",pid=7,fd=11))
LISTEN 0      128      0.0.0.0:22   0.0.0.0:* users:(("sshd",pid=3,fd=3))
"""


def test_ports_are_those_of_the_units_processes() -> None:
    """Another program with the same name, or any other program, is not the mount."""
    groups = {"7": "0::/system.slice/juicefs.service\n", "3": "0::/system.slice/ssh.service\n"}

    assert effects.listening(SOCKETS, "juicefs.service", groups.__getitem__) == ["127.0.0.1:6061", "127.0.0.1:9567"]
    assert effects.listening(SOCKETS, "juicefs.service", lambda _: "0::/user.slice\n") == []


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


@root_only
def test_what_users_left_where_only_root_may_write_is_named(tmp_path: Path) -> None:
    """Links of users, homes of others, open homes and the old folder of verify are named; root's own and unknown numbers are not."""
    nobody = 65534
    for path in ("home/nobody", "home/daemon", "home/4242", "primus/jobs", ".primus-verify", "data"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "home" / "file").write_text("x", encoding="utf-8")
    for path, mode in (("home/nobody", 0o755), ("home/daemon", 0o700), ("home/4242", 0o700), (".primus-verify", 0o700)):
        os.chown(tmp_path / path, 4242 if path.endswith("4242") else nobody, nobody)
        (tmp_path / path).chmod(mode)
    for path in ("link", "primus/link", "of-root"):
        (tmp_path / path).symlink_to("/etc")
        os.chown(tmp_path / path, 0 if path == "of-root" else nobody, 0, follow_symlinks=False)
    with effects.open_folder(tmp_path) as root:
        found = {one["path"].replace(f"{tmp_path}/", ""): one["problem"] for one in effects.strange(root)}

    assert sorted(found) == [".primus-verify", "home/daemon", "home/file", "home/nobody", "link", "primus/link"]
    assert found["link"] == "is a symbolic link of nobody"
    assert found["home/daemon"] == "belongs to nobody"
    assert found["home/nobody"] == "has mode 0755: other accounts can enter it"


def test_the_old_folder_of_verify_goes_with_its_files(tmp_path: Path) -> None:
    """A folder of root's is emptied and removed; a link of that name stays, and so does what it points to."""
    old = tmp_path / effects.OLD_FOLDER
    old.mkdir()
    (old / "n1").write_text("x", encoding="utf-8")
    effects.drop_old_folder(str(tmp_path))
    gone = not old.exists()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x", encoding="utf-8")
    old.symlink_to(tmp_path / "kept")
    effects.drop_old_folder(str(tmp_path))

    assert gone
    assert old.is_symlink()
    assert (tmp_path / "kept" / "file").exists()
