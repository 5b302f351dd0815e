"""Module `juicefs_effects`: the mount, its processes, ownership of folders and backups of metadata."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to other accounts")
effects: Any = load_role_module("juicefs", "juicefs_effects")

VERIFY = "primus/verify"
MOUNTS = "/dev/sda1 / ext4 rw 0 0\nJuiceFS:jfs /jfs fuse.juicefs rw,nosuid 0 0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the verification folder on a mount."""
    path = tmp_path / "jfs" / VERIFY
    path.mkdir(parents=True, mode=0o700)
    return path


def test_mounted_volume_passes_and_plain_folder_fails() -> None:
    """The last mount on the folder counts."""
    covered = MOUNTS + "tmpfs /jfs tmpfs rw 0 0\n"
    found = [effects.check_mount("n1", "/jfs", mounts)["verdict"] for mounts in (MOUNTS, covered, "")]

    assert found == ["pass", "fail", "fail"]


def test_missing_peer_file_is_not_compared(folder: Path) -> None:
    """A peer without a file is unknown, a single host is skipped; both give the reason."""
    silent = effects.read("n2", str(folder), "n1", "")
    alone = effects.read("n2", str(folder), "n2", "0" * 64)

    assert [silent["verdict"], alone["verdict"]] == ["unknown", "skipped"]
    assert silent["reason"]
    assert alone["reason"]


SOCKETS = """\
LISTEN 0      4096   127.0.0.1:6061 0.0.0.0:* users:(("juicefs",pid=7,fd=8))
LISTEN 0      4096   127.0.0.1:9567 0.0.0.0:* users:(("juicefs",pid=7,fd=11))
LISTEN 0      128      0.0.0.0:22   0.0.0.0:* users:(("sshd",pid=3,fd=3))
"""


def test_ports_belong_to_processes_of_the_unit() -> None:
    """Other processes are ignored, also those with the same name."""
    groups = {"7": "0::/system.slice/juicefs.service\n", "3": "0::/system.slice/ssh.service\n"}

    assert effects.listening(SOCKETS, "juicefs.service", groups.__getitem__) == ["127.0.0.1:6061", "127.0.0.1:9567"]
    assert effects.listening(SOCKETS, "juicefs.service", lambda _: "0::/user.slice\n") == []


@pytest.mark.parametrize("verdict", ["pass", "fail"])
def test_records_have_all_fields_of_the_report(verdict: str) -> None:
    """Each record contains check, host, verdict and schema."""
    entry = effects.record("n1", "mounted", verdict)

    assert {"check", "host", "verdict", "schema", "source"} <= set(entry)


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """Return a program that dumps as juicefs 1.4 does: to standard output or by replacing the target file."""
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


# --- Entries of users beside the cluster's folders ---


@root_only
def test_user_owned_entries_in_root_folders_are_reported(tmp_path: Path) -> None:
    """Links, and foreign or open homes, are reported; root's entries and unknown ids are not."""
    nobody = 65534
    for path in ("home/nobody", "home/daemon", "home/4242", "primus/jobs", "data"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "home" / "file").write_text("x", encoding="utf-8")
    for path, mode in (("home/nobody", 0o755), ("home/daemon", 0o700), ("home/4242", 0o700)):
        os.chown(tmp_path / path, 4242 if path.endswith("4242") else nobody, nobody)
        (tmp_path / path).chmod(mode)
    for path in ("link", "primus/link", "of-root"):
        (tmp_path / path).symlink_to("/etc")
        os.chown(tmp_path / path, 0 if path == "of-root" else nobody, 0, follow_symlinks=False)
    with effects.open_folder(tmp_path) as root:
        found = {one["path"].replace(f"{tmp_path}/", ""): one["problem"] for one in effects.foreign_entries(root)}

    assert sorted(found) == ["home/daemon", "home/file", "home/nobody", "link", "primus/link"]
    assert found["link"] == "is a symbolic link of nobody"
    assert found["home/daemon"] == "belongs to nobody"
    assert found["home/nobody"] == "has mode 0755: other accounts can enter it"
