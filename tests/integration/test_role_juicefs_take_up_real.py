"""How a mount comes to new settings: a fresh process takes it over with its open files, or it waits until nobody uses it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.test_role_juicefs_take_up import FILES

if TYPE_CHECKING:
    from pathlib import Path


# What each program answers is a file of its name; every call is noted.
STUB = """#!/bin/sh
name=$(basename "$0")
echo "$name $*" >> "$STUB/calls"
case "$name $*" in
    "systemctl is-active"*) [ -e "$STUB/active" ] ;;
    "systemctl show"*) echo yes ;;
    "systemctl reload"*) [ -e "$STUB/reloads" ] && cp "$STUB/good" "$STUB/applied" ;;
    python3*) cat "$STUB/users" 2> /dev/null; true ;;
    umount*) [ ! -e "$STUB/busy" ] ;;
esac
"""


def take_up(folder: Path, *facts: str, mode: str = "do", users: str = "", stale: bool = True) -> tuple[int, str, list[str]]:
    """Run the script with these facts; return its exit code, its output, and what changed anything."""
    stated = folder / "unit"
    stated.write_text("now", encoding="utf-8")
    good = f"{hashlib.sha256(b'now').hexdigest()}  {stated}\n"
    (folder / "good").write_text(good, encoding="utf-8")
    (folder / "applied").write_text(good.replace(good[:8], "0" * 8) if stale else good, encoding="utf-8")
    (folder / "users").write_text(users, encoding="utf-8")
    for fact in facts:
        (folder / fact).touch()
    for name in ("systemctl", "python3", "umount", "journalctl", "close"):
        (folder / name).write_text(STUB, encoding="utf-8")
        (folder / name).chmod(0o755)
    words = ["/bin/sh", "-s", "juicefs.service", str(folder / "applied"), "users.py", "/jfs", mode, str(folder / "close")]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "STUB": str(folder)}
    script = (FILES / "take_up.sh").read_text(encoding="utf-8")
    done = subprocess.run(words, input=script, env=environment, capture_output=True, text=True, check=False, timeout=60)
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    changes = [call for call in calls if call.startswith(("systemctl reload", "systemctl restart", "umount", "close"))]
    return done.returncode, done.stdout.strip(), changes


def test_one_that_runs_with_these_files_is_left_alone(tmp_path: Path) -> None:
    """Nothing is changed, and nothing is said."""
    assert take_up(tmp_path, "active", stale=False) == (0, "", [])


def test_a_mount_in_use_is_taken_over(tmp_path: Path) -> None:
    """The unit is reloaded; nobody is asked who uses it."""
    assert take_up(tmp_path, "active", "reloads", "busy", users="python3 (7)") == (
        0,
        "stale: taken over",
        ["systemctl reload juicefs.service"],
    )


@pytest.mark.parametrize(("facts", "named"), [(("busy",), "programs that use it"), ((), "train.py (7)")])
def test_one_that_cannot_be_taken_over_is_kept_while_it_is_used(tmp_path: Path, facts: tuple[str, ...], named: str) -> None:
    """Whether the kernel says so, or a container that the kernel does not count is seen; the unit is not restarted."""
    code, said, changes = take_up(tmp_path, "active", *facts, users="train.py (7)" if not facts else "")

    assert (code, said) == (0, f"kept as it is for {named}")
    assert "systemctl restart juicefs.service" not in changes
    # What covers the trash may have been unmounted.
    assert changes[-1] == "close /jfs"


@pytest.mark.parametrize(("mode", "facts"), [("do", ("active",)), ("interrupt", ("active", "busy")), ("do", ())])
def test_the_unit_is_restarted_where_nobody_uses_it_or_files_may_end(tmp_path: Path, mode: str, facts: tuple[str, ...]) -> None:
    """So is one that does not run."""
    code, said, changes = take_up(tmp_path, *facts, mode=mode)

    assert (code, said) == (0, "stale")
    assert changes[-1] == "systemctl restart juicefs.service"


@pytest.mark.parametrize("facts", [("active", "reloads"), ()])
def test_a_look_changes_nothing(tmp_path: Path, facts: tuple[str, ...]) -> None:
    """In check mode it says that it would."""
    assert take_up(tmp_path, *facts, mode="look") == (0, "stale", [])


# --- The reload of the unit ---

RUNNING = ["/opt/juicefs/old/juicefs", "mount", "--cache-size=512", "redis://10.0.0.1:6379/1", "/jfs"]
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$STUB/calls"
case "$(basename "$0") $1" in "juicefs status") [ ! -e "$STUB/unreachable" ] ;; esac
"""


def reload(folder: Path, running: list[str], stated: list[str], *facts: str) -> tuple[int, str, list[str]]:
    """Run the script beside a process with the running command line; return exit code, complaint and calls."""
    for fact in facts:
        (folder / fact).touch()
    for name in ("juicefs", "systemd-notify"):
        (folder / name).write_text(PROGRAM, encoding="utf-8")
        (folder / name).chmod(0o755)
    (folder / "mount").mkdir()
    (folder / "mount" / ".config").write_text('{\n "CommPath": "/tmp/fuse_fd_comm.1",\n "Pid": 1\n}', encoding="utf-8")
    # JuiceFS writes its command line as one text, with spaces.
    line = " ".join(running).replace("/jfs", str(folder / "mount"))
    script = (FILES / "juicefs_reload.sh").read_text(encoding="utf-8").replace('"/proc/$main/cmdline"', '"$STUB/cmdline"')
    (folder / "cmdline").write_text(line, encoding="utf-8")
    (folder / "reload.sh").write_text(script, encoding="utf-8")
    (folder / "juicefs_mount.sh").write_text('exec "$@"\n', encoding="utf-8")
    (folder / "juicefs_claim.py").write_text("", encoding="utf-8")
    words = ["/bin/sh", str(folder / "reload.sh"), "1", str(folder / "applied")]
    words += [word.replace("/jfs", str(folder / "mount")) for word in stated]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "STUB": str(folder)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    calls = folder / "calls"
    return done.returncode, done.stderr, calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []


def stated(folder: Path, *options: str) -> list[str]:
    """Return a command line with TLS, another program, and these options."""
    return [str(folder / "juicefs"), "mount", *options, "rediss://10.0.0.1:6380/1?tls-ca-cert-file=/etc/juicefs/redis-ca.crt", "/jfs"]


def test_other_options_are_not_mounted_on_top(tmp_path: Path) -> None:
    """JuiceFS would put a second mount over the first one; nothing is started."""
    code, said, calls = reload(tmp_path, RUNNING, stated(tmp_path, "--cache-size=512", "-o=allow_other"))

    assert code == 1
    assert "its options changed" in said
    assert calls == []


def test_a_mount_that_loses_its_ports_is_taken_over(tmp_path: Path) -> None:
    """Debug pages and metrics are no options of FUSE: the next obstacle is reached, an engine that does not answer."""
    running = [RUNNING[0], "mount", "--metrics=127.0.0.1:9567", *RUNNING[2:]]
    words = stated(tmp_path, "--metrics=127.0.0.1:off", "--cache-size=512")
    _, said, _ = reload(tmp_path, running, [words[0], "--no-agent", *words[1:]], "unreachable")

    assert "does not answer at rediss://" in said


def test_an_engine_that_does_not_answer_ends_no_mount(tmp_path: Path) -> None:
    """The fresh process would end, and the unit with it: the new URL is tried first."""
    code, said, calls = reload(tmp_path, RUNNING, stated(tmp_path, "--cache-size=512"), "unreachable")

    assert code == 1
    assert "does not answer at rediss://10.0.0.1:6380/1" in said
    assert [call.split()[:2] for call in calls] == [["juicefs", "status"]]


def test_a_fresh_process_is_started_and_becomes_the_main_one(tmp_path: Path) -> None:
    """Another metadata engine and another program are no other options. Here it ends at once, which is said."""
    code, said, calls = reload(tmp_path, RUNNING, stated(tmp_path, "--cache-size=512"))

    assert code == 1
    assert "the fresh process ended" in said
    assert sorted(call.split()[0] + " " + call.split()[1].partition("=")[0] for call in calls) == [
        "juicefs mount",
        "juicefs status",
        "systemd-notify --pid",
    ]


# --- Who uses a mount ---
