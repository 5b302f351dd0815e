"""Scripts that apply new settings to a mount: hand-over to a new process, or a restart when it is unused."""

from __future__ import annotations

import hashlib
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.test_role_juicefs_take_up import FILES

if TYPE_CHECKING:
    from pathlib import Path


# A file named after each program contains its answer; each call is recorded.
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
    """Run the script with these facts; return exit code, output and changes."""
    unit = folder / "unit"
    unit.write_text("now", encoding="utf-8")
    good = f"{hashlib.sha256(b'now').hexdigest()}  {unit}\n"
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
    script = (FILES / "apply_settings.sh").read_text(encoding="utf-8")
    done = subprocess.run(words, input=script, env=environment, capture_output=True, text=True, check=False, timeout=60)
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    changes = [call for call in calls if call.startswith(("systemctl reload", "systemctl restart", "umount", "close"))]
    return done.returncode, done.stdout.strip(), changes


def test_current_mount_is_not_changed(tmp_path: Path) -> None:
    """No change and no output."""
    assert take_up(tmp_path, "active", stale=False) == (0, "", [])


def test_used_mount_is_handed_over(tmp_path: Path) -> None:
    """The unit is reloaded without a search for users."""
    assert take_up(tmp_path, "active", "reloads", "busy", users="python3 (7)") == (
        0,
        "stale: taken over",
        ["systemctl reload juicefs.service"],
    )


@pytest.mark.parametrize(("facts", "named"), [(("busy",), "programs that use it"), ((), "train.py (7)")])
def test_used_mount_without_hand_over_is_not_restarted(tmp_path: Path, facts: tuple[str, ...], named: str) -> None:
    """Users may be reported by the kernel or be in a container."""
    code, output, changes = take_up(tmp_path, "active", *facts, users="train.py (7)" if not facts else "")

    assert (code, output) == (0, f"kept with its old settings for {named}")
    assert "systemctl restart juicefs.service" not in changes
    # The cover of the trash may have been unmounted.
    assert changes[-1] == "close /jfs"


@pytest.mark.parametrize(("mode", "facts"), [("do", ("active",)), ("interrupt", ("active", "busy")), ("do", ())])
def test_unused_or_released_mount_is_restarted(tmp_path: Path, mode: str, facts: tuple[str, ...]) -> None:
    """A stopped unit is started as well."""
    code, output, changes = take_up(tmp_path, *facts, mode=mode)

    assert (code, output) == (0, "stale")
    assert changes[-1] == "systemctl restart juicefs.service"


@pytest.mark.parametrize("facts", [("active", "reloads"), ()])
def test_check_mode_changes_nothing(tmp_path: Path, facts: tuple[str, ...]) -> None:
    """It reports the pending change."""
    assert take_up(tmp_path, *facts, mode="look") == (0, "stale", [])


# --- Reload of the unit ---

RUNNING = ["/opt/juicefs/old/juicefs", "mount", "--cache-size=512", "redis://10.0.0.1:6379/1", "/jfs"]
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$STUB/calls"
case "$(basename "$0") $1" in "juicefs status") [ ! -e "$STUB/unreachable" ] ;; esac
"""


def reload(folder: Path, running: list[str], command_line: list[str], *facts: str) -> tuple[int, str, list[str]]:
    """Run the script beside a process with this command line; return exit code, error and calls."""
    for fact in facts:
        (folder / fact).touch()
    for name in ("juicefs", "systemd-notify"):
        (folder / name).write_text(PROGRAM, encoding="utf-8")
        (folder / name).chmod(0o755)
    (folder / "mount").mkdir()
    (folder / "mount" / ".config").write_text('{\n "CommPath": "/tmp/fuse_fd_comm.1",\n "Pid": 1\n}', encoding="utf-8")
    # JuiceFS writes its command line as one string with spaces.
    line = " ".join(running).replace("/jfs", str(folder / "mount"))
    script = (FILES / "juicefs_reload.sh").read_text(encoding="utf-8").replace('"/proc/$main/cmdline"', '"$STUB/cmdline"')
    (folder / "cmdline").write_text(line, encoding="utf-8")
    (folder / "reload.sh").write_text(script, encoding="utf-8")
    (folder / "juicefs_mount.sh").write_text('exec "$@"\n', encoding="utf-8")
    (folder / "juicefs_claim.py").write_text("", encoding="utf-8")
    words = ["/bin/sh", str(folder / "reload.sh"), "1", str(folder / "applied")]
    words += [word.replace("/jfs", str(folder / "mount")) for word in command_line]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "STUB": str(folder)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    calls = folder / "calls"
    return done.returncode, done.stderr, calls.read_text(encoding="utf-8").splitlines() if calls.exists() else []


def command_line(folder: Path, *options: str) -> list[str]:
    """Return a command line with TLS, another program and these options."""
    return [str(folder / "juicefs"), "mount", *options, "rediss://10.0.0.1:6380/1?tls-ca-cert-file=/etc/juicefs/redis-ca.crt", "/jfs"]


def test_different_fuse_options_start_no_process(tmp_path: Path) -> None:
    """JuiceFS would mount a second time above the first mount."""
    code, errors, calls = reload(tmp_path, RUNNING, command_line(tmp_path, "--cache-size=512", "-o=allow_other"))

    assert code == 1
    assert "its options changed" in errors
    assert calls == []


def test_mount_with_fewer_ports_is_handed_over(tmp_path: Path) -> None:
    """Debug and metrics ports are not FUSE options. The next check fails: the engine does not answer."""
    running = [RUNNING[0], "mount", "--metrics=127.0.0.1:9567", *RUNNING[2:]]
    words = command_line(tmp_path, "--metrics=127.0.0.1:off", "--cache-size=512")
    _, errors, _ = reload(tmp_path, running, [words[0], "--no-agent", *words[1:]], "unreachable")

    assert "does not answer at rediss://" in errors


def test_unreachable_engine_ends_no_mount(tmp_path: Path) -> None:
    """The new process and the unit would end, so the new URL is tested first."""
    code, errors, calls = reload(tmp_path, RUNNING, command_line(tmp_path, "--cache-size=512"), "unreachable")

    assert code == 1
    assert "does not answer at rediss://10.0.0.1:6380/1" in errors
    assert [call.split()[:2] for call in calls] == [["juicefs", "status"]]


def test_new_process_becomes_the_main_process(tmp_path: Path) -> None:
    """A different engine or program is accepted. Here the process ends at once, and the script reports it."""
    code, errors, calls = reload(tmp_path, RUNNING, command_line(tmp_path, "--cache-size=512"))

    assert code == 1
    assert "the new process ended" in errors
    assert sorted(call.split()[0] + " " + call.split()[1].partition("=")[0] for call in calls) == [
        "juicefs mount",
        "juicefs status",
        "systemd-notify --pid",
    ]


# --- Users of a mount ---
