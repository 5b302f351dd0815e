"""Test the fan-out with a real sshd: answers, causes of missing answers, and its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.fleet import fanout
from primus_bootstrap.fleet.messages import Answer, Target, Task
from tests.integration.fleet_rig import LoopbackSshd, needs_sshd, run_command_on, silent_port, sshd
from tests.integration.sshd_rig import make_key
from tests.unit.engine_rig import free_port
from tests.waiting import until

pytestmark = needs_sshd
__all__ = ["silent_port", "sshd"]


def children_of(pid: int) -> list[int]:
    """Return the running child processes of a process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def test_answer_has_exit_code_output_and_times(sshd: LoopbackSshd) -> None:
    """The answer has both streams and the exit code, stdin arrives, and the times enclose the run."""
    before = time.time()

    found = run_command_on([sshd.target()], "cat; echo oh >&2; exit 7", sshd.known_hosts(), stdin="in\n")["host1"]

    assert (found.exit_code, found.stdout, found.stderr) == (7, "in\n", "oh\n")
    assert before <= found.sent <= found.received <= time.time()


def test_silent_hosts_do_not_delay_others(sshd: LoopbackSshd, silent_port: int) -> None:
    """Sixty silent hosts, more than handshakes in parallel, delay neither other hosts nor the end."""
    good = [sshd.target(f"good{number}") for number in range(3)]
    bad = [replace(sshd.target(f"bad{number:02}"), port=silent_port) for number in range(60)]
    task = Task("true", {}, 12.0, sshd.known_hosts())
    started = time.monotonic()

    order = [(answer.host, answer.cause, time.monotonic() - started) for answer in fanout.run_on_all([*bad, *good], task)]

    assert {host for host, _, _ in order[:3]} == {"good0", "good1", "good2"}
    assert max(seconds for _, _, seconds in order[:3]) < 11.5
    assert {cause for _, cause, _ in order[3:]} <= {"timeout", "protocol"}
    assert order[-1][2] < 24


def test_each_failure_has_its_cause(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """A refused connection, unknown name, wrong key, missing key file, passphrase and unpinned key have different causes."""
    make_key(tmp_path / "other")
    make_key(tmp_path / "locked", passphrase="secret")
    good = sshd.target()
    targets = [
        replace(good, host="refused", port=free_port()),
        replace(good, host="name", address="no-such-host.invalid"),
        replace(good, host="auth", key_file=str(tmp_path / "other")),
        replace(good, host="missing", key_file=str(tmp_path / "nowhere")),
        replace(good, host="locked", key_file=str(tmp_path / "locked")),
        replace(good, host="stranger", address="127.0.0.2"),
        replace(good, host="arguments", ssh_arguments=("-o", "NoSuchOption=1")),
    ]

    found = run_command_on(targets, "true", sshd.known_hosts())

    causes = {host: answer.cause for host, answer in found.items()}
    assert causes == {
        "refused": "refused", "name": "name", "auth": "auth", "missing": "key_file", "locked": "key_file",
        "stranger": "host_key_unknown", "arguments": "ssh_arguments",
    }  # fmt: skip
    assert all(not answer.answered and answer.detail and answer.fix for answer in found.values())


def test_changed_host_key_is_refused(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """A host with another key than the pinned one is refused, for every format of the pin."""
    make_key(tmp_path / "other")
    wrong = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    plain, hashed = tmp_path / "plain", tmp_path / "hashed"
    for path in (plain, hashed):
        path.write_text(f"[127.0.0.1]:{sshd.port} {wrong}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(hashed)], check=True, capture_output=True)

    causes = [run_command_on([sshd.target()], "true", str(path))["host1"].cause for path in (plain, hashed)]

    assert causes == ["host_key_changed", "host_key_changed"]


def test_agent_provides_a_key_with_a_passphrase(sshd: LoopbackSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key file with a passphrase works if ssh-agent has the key."""
    locked = tmp_path / "locked"
    locked.write_bytes(Path(sshd.key_file).read_bytes())
    locked.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(locked)], check=True, capture_output=True)
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    target = replace(sshd.target(), key_file=str(locked))
    try:
        while not socket.exists():
            time.sleep(0.05)
        empty = run_command_on([target], "true", sshd.known_hosts())["host1"]
        subprocess.run(["ssh-add", "-q", sshd.key_file], check=True)
        held = run_command_on([target], "true", sshd.known_hosts())["host1"]
    finally:
        agent.terminate()
        agent.wait()

    assert (empty.cause, held.exit_code) == ("auth", 0)


def test_hashed_pin_is_accepted(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """Hashed names in known_hosts, the default of Debian's ssh, are supported."""
    hashed = tmp_path / "hashed"
    hashed.write_text(Path(sshd.known_hosts()).read_text())
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(hashed)], check=True, capture_output=True)

    assert run_command_on([sshd.target()], "true", str(hashed))["host1"].exit_code == 0


def test_command_has_a_time_limit(sshd: LoopbackSshd) -> None:
    """The answer names the stage in which the time limit expired."""
    started = time.monotonic()

    found = run_command_on([sshd.target()], "sleep 60", sshd.known_hosts(), timeout_s=3.0)["host1"]

    assert (found.cause, found.exit_code) == ("timeout", None)
    assert "running the command" in found.detail
    assert time.monotonic() - started < 30


def test_any_output_is_accepted(sshd: LoopbackSshd) -> None:
    """Bytes that are not UTF-8 are replaced, and output above 1 MiB is dropped."""
    found = run_command_on(
        [sshd.target("odd"), sshd.target("much")], 'printf "\\377ok"; head -c 3000000 /dev/zero | tr "\\0" x', sshd.known_hosts()
    )

    assert {answer.exit_code for answer in found.values()} == {0}
    assert all(answer.truncated and answer.stdout.startswith("\ufffdok") for answer in found.values())
    assert all(len(answer.stdout.encode()) < 2_000_000 for answer in found.values())


def test_signal_is_not_an_exit_code(sshd: LoopbackSshd) -> None:
    """A command that a signal ended has the cause `lost`."""
    assert run_command_on([sshd.target()], "kill -9 $$", sshd.known_hosts())["host1"].cause == "lost"


def test_bastion_works_with_proxy_command_and_proxy_jump(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """Both connect through a second sshd, and the host's key is checked."""
    folder = tmp_path / "bastion"
    folder.mkdir()
    bastion = LoopbackSshd(folder)
    bastion.start()
    try:
        config = folder / "config"
        words = f"  IdentityFile {bastion.key_file}\n  UserKnownHostsFile {bastion.known_hosts()}\n  Port {bastion.port}\n"
        config.write_text(f"Host 127.0.0.1\n{words}")
        command = f"ssh -F {config} -o BatchMode=yes -W %h:%p 127.0.0.1"
        good = replace(sshd.target(), address="127.0.0.3")
        targets = [
            replace(good, host="command", ssh_arguments=("-o", f"ProxyCommand={command}")),
            replace(good, host="jump", ssh_arguments=("-F", str(config), "-J", "127.0.0.1")),
            replace(good, host="stranger", address="127.0.0.4", ssh_arguments=("-o", f"ProxyCommand={command}")),
        ]

        found = run_command_on(targets, "echo $SSH_CONNECTION", sshd.known_hosts("127.0.0.3"))
    finally:
        bastion.stop()

    assert [found[name].stdout.split()[2] for name in ("command", "jump")] == ["127.0.0.3", "127.0.0.3"]
    assert found["stranger"].cause == "host_key_unknown"


def test_failure_of_the_bastion_is_reported(sshd: LoopbackSshd) -> None:
    """The detail of the host is ssh's message about the bastion."""
    words = f"ProxyCommand=ssh -F none -o BatchMode=yes -p {free_port()} -W %h:%p 127.0.0.1"

    found = run_command_on([replace(sshd.target(), ssh_arguments=("-o", words))], "true", sshd.known_hosts())["host1"]

    assert found.cause == "bastion"
    assert "refused" in found.detail


def test_local_host_needs_no_ssh() -> None:
    """A host with `ansible_connection: local` needs no connection."""
    found = run_command_on([Target("me", "me", local=True)], "cat; exit 3", "", stdin="x")["me"]

    assert (found.exit_code, found.stdout) == (3, "x")


def test_passwords_are_not_visible_in_processes(sshd: LoopbackSshd) -> None:
    """No process has a password or the text of stdin in its arguments or environment."""
    seen: list[str] = []
    target = replace(sshd.target(), become_password="hunter2-become")
    asking = threading.Thread(target=run_command_on, args=([target], "sleep 2", sshd.known_hosts()), kwargs={"stdin": "hunter2-stdin"})
    asking.start()
    while asking.is_alive():
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                seen.append(
                    (folder / "cmdline").read_bytes().decode(errors="replace") + (folder / "environ").read_bytes().decode(errors="replace")
                )
        time.sleep(0.2)
    asking.join()

    assert any("primus_bootstrap.fleet.worker" in text for text in seen)
    assert not any("hunter2" in text for text in seen)
    assert "hunter2" not in repr(target) + repr(Task("true", {"host1": "hunter2"}))


def test_hosts_of_a_dead_worker_are_unknown(sshd: LoopbackSshd) -> None:
    """Hosts without an answer are reported with the cause `lost`."""
    answers: list[Answer] = []
    for answer in fanout.run_on_all([sshd.target("quick"), sshd.target("slow")], Task("true", {}, 30.0, sshd.known_hosts())):
        answers.append(answer)
        for pid in children_of(os.getpid()):
            if b"fleet.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    assert sorted(answer.host for answer in answers) == ["quick", "slow"]


def test_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch, sshd: LoopbackSshd) -> None:
    """The error has the worker's last output."""
    monkeypatch.setattr(fanout, "WORKER", ("-c", "raise SystemExit('no such thing')"))

    with pytest.raises(RunError, match="no such thing"):
        run_command_on([sshd.target()], "true", sshd.known_hosts())


def test_closing_the_iterator_ends_the_worker(sshd: LoopbackSshd) -> None:
    """The process and every connection end."""
    before = set(children_of(os.getpid()))
    task = Task("read -r seconds; sleep $seconds", {"one": "0\n", "two": "25\n"}, 30.0, sshd.known_hosts())
    answers = fanout.run_on_all([sshd.target("one"), sshd.target("two")], task)
    assert next(answers).host == "one"
    started = time.monotonic()

    answers.close()  # type: ignore[attr-defined]

    assert time.monotonic() - started < 10
    assert set(children_of(os.getpid())) <= before


def test_worker_ends_with_its_parent(sshd: LoopbackSshd) -> None:
    """A killed controller leaves no worker."""
    program = (
        "from primus_bootstrap.fleet.fanout import run_on_all; from primus_bootstrap.fleet.messages import Target, Task;"
        f"list(run_on_all([{sshd.target()!r}.__class__(*{_fields(sshd.target())!r})],"
        f" Task('sleep 60', {{}}, 60.0, {sshd.known_hosts()!r})))"
    ).replace(repr(sshd.target()) + ".__class__", "Target")
    parent = subprocess.Popen([sys.executable, "-c", program])
    workers = until(lambda: children_of(parent.pid), "a worker")
    time.sleep(1.0)

    parent.kill()
    parent.wait()

    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), f"the end of {workers}", limit_s=20)


def _fields(target: Target) -> tuple[object, ...]:
    return target.host, target.address, target.port, target.user, target.key_file
