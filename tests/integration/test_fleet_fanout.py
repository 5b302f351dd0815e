"""The fan-out against a real sshd: who answers, who does not and why, and what is left behind."""

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
from tests.integration.fleet_rig import LoopbackSshd, ask, needs_sshd, silent_port, sshd
from tests.unit.engine_rig import free_port, make_key
from tests.waiting import until

pytestmark = needs_sshd
__all__ = ["silent_port", "sshd"]


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def test_an_answer_holds_code_output_and_times(sshd: LoopbackSshd) -> None:
    """What the command prints on both streams, its exit code and its stdin all arrive; the clock encloses the run."""
    before = time.time()

    found = ask([sshd.target()], "cat; echo oh >&2; exit 7", sshd.known_hosts(), stdin="in\n")["host1"]

    assert (found.exit_code, found.stdout, found.stderr) == (7, "in\n", "oh\n")
    assert before <= found.sent <= found.received <= time.time()


def test_hosts_that_hang_delay_nobody(sshd: LoopbackSshd, silent_port: int) -> None:
    """Sixty hosts that accept and stay silent, more than shake hands at once, delay neither the good ones nor the end."""
    good = [sshd.target(f"good{number}") for number in range(3)]
    bad = [replace(sshd.target(f"bad{number:02}"), port=silent_port) for number in range(60)]
    task = Task("true", {}, 12.0, sshd.known_hosts())
    started = time.monotonic()

    order = [(answer.host, answer.cause, time.monotonic() - started) for answer in fanout.ask_all([*bad, *good], task)]

    assert {host for host, _, _ in order[:3]} == {"good0", "good1", "good2"}
    assert max(seconds for _, _, seconds in order[:3]) < 11.5
    assert {cause for _, cause, _ in order[3:]} <= {"timeout", "protocol"}
    assert order[-1][2] < 24


def test_each_way_not_to_answer_has_its_cause(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """Refused, no such name, wrong key, no key file, a key with a passphrase, no pinned key: each is said as what it is."""
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

    found = ask(targets, "true", sshd.known_hosts())

    causes = {host: answer.cause for host, answer in found.items()}
    assert causes == {
        "refused": "refused", "name": "name", "auth": "auth", "missing": "key_file", "locked": "key_file",
        "stranger": "host_key_unknown", "arguments": "ssh_arguments",
    }  # fmt: skip
    assert all(not answer.answered and answer.detail and answer.fix for answer in found.values())


def test_a_changed_host_key_is_refused(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """A host that shows another key than the pinned one is not talked to, however its key is written."""
    make_key(tmp_path / "other")
    wrong = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    plain, hashed = tmp_path / "plain", tmp_path / "hashed"
    for path in (plain, hashed):
        path.write_text(f"[127.0.0.1]:{sshd.port} {wrong}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(hashed)], check=True, capture_output=True)

    causes = [ask([sshd.target()], "true", str(path))["host1"].cause for path in (plain, hashed)]

    assert causes == ["host_key_changed", "host_key_changed"]


def test_a_key_with_a_passphrase_is_asked_of_the_agent(sshd: LoopbackSshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ssh-agent holds the key, a key file with a passphrase is no obstacle."""
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
        empty = ask([target], "true", sshd.known_hosts())["host1"]
        subprocess.run(["ssh-add", "-q", sshd.key_file], check=True)
        held = ask([target], "true", sshd.known_hosts())["host1"]
    finally:
        agent.terminate()
        agent.wait()

    assert (empty.cause, held.exit_code) == ("auth", 0)


def test_a_hashed_pin_is_as_good(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """known_hosts with hashed names, as Debian's ssh writes them, is understood."""
    hashed = tmp_path / "hashed"
    hashed.write_text(Path(sshd.known_hosts()).read_text())
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(hashed)], check=True, capture_output=True)

    assert ask([sshd.target()], "true", str(hashed))["host1"].exit_code == 0


def test_a_command_that_does_not_end_is_given_up(sshd: LoopbackSshd) -> None:
    """The budget holds for the command as well, and the answer says in which stage it ran out."""
    started = time.monotonic()

    found = ask([sshd.target()], "sleep 60", sshd.known_hosts(), timeout_s=3.0)["host1"]

    assert (found.cause, found.exit_code) == ("timeout", None)
    assert "running the command" in found.detail
    assert time.monotonic() - started < 30


def test_any_output_is_survived(sshd: LoopbackSshd) -> None:
    """Bytes that are no text are shown as such, and more than a MiB is read to its end but not kept."""
    found = ask([sshd.target("odd"), sshd.target("much")], 'printf "\\377ok"; head -c 3000000 /dev/zero | tr "\\0" x', sshd.known_hosts())

    assert {answer.exit_code for answer in found.values()} == {0}
    assert all(answer.truncated and answer.stdout.startswith("\ufffdok") for answer in found.values())
    assert all(len(answer.stdout.encode()) < 2_000_000 for answer in found.values())


def test_a_signal_is_no_exit_code(sshd: LoopbackSshd) -> None:
    """A command that a signal ended is not taken for one that ran."""
    assert ask([sshd.target()], "kill -9 $$", sshd.known_hosts())["host1"].cause == "lost"


def test_a_bastion_by_proxy_command_and_by_proxy_jump(sshd: LoopbackSshd, tmp_path: Path) -> None:
    """Both forms of a bastion reach the host behind it, through a second sshd; the host's own key is still checked."""
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

        found = ask(targets, "echo $SSH_CONNECTION", sshd.known_hosts("127.0.0.3"))
    finally:
        bastion.stop()

    assert [found[name].stdout.split()[2] for name in ("command", "jump")] == ["127.0.0.3", "127.0.0.3"]
    assert found["stranger"].cause == "host_key_unknown"


def test_a_bastion_that_fails_says_why(sshd: LoopbackSshd) -> None:
    """What ssh says of the bastion is the reason of the host behind it."""
    words = f"ProxyCommand=ssh -F none -o BatchMode=yes -p {free_port()} -W %h:%p 127.0.0.1"

    found = ask([replace(sshd.target(), ssh_arguments=("-o", words))], "true", sshd.known_hosts())["host1"]

    assert found.cause == "bastion"
    assert "refused" in found.detail


def test_this_machine_itself_needs_no_ssh() -> None:
    """A host with `ansible_connection: local` is asked without a connection."""
    found = ask([Target("me", "me", local=True)], "cat; exit 3", "", stdin="x")["me"]

    assert (found.exit_code, found.stdout) == (3, "x")


def test_passwords_never_stand_in_an_argument_list(sshd: LoopbackSshd) -> None:
    """While a command runs, no process of the machine shows a password or stdin's text in its arguments or environment."""
    seen: list[str] = []
    target = replace(sshd.target(), become_password="hunter2-become")
    asking = threading.Thread(target=ask, args=([target], "sleep 2", sshd.known_hosts()), kwargs={"stdin": "hunter2-stdin"})
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


def test_a_worker_that_dies_leaves_no_host_out(sshd: LoopbackSshd) -> None:
    """Hosts for which the worker had no time are reported as unknown."""
    answers: list[Answer] = []
    for answer in fanout.ask_all([sshd.target("quick"), sshd.target("slow")], Task("true", {}, 30.0, sshd.known_hosts())):
        answers.append(answer)
        for pid in children_of(os.getpid()):
            if b"fleet.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    assert sorted(answer.host for answer in answers) == ["quick", "slow"]


def test_a_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch, sshd: LoopbackSshd) -> None:
    """A worker that ends before its first answer is an error that shows its last words."""
    monkeypatch.setattr(fanout, "WORKER", ("-c", "raise SystemExit('no such thing')"))

    with pytest.raises(RunError, match="no such thing"):
        ask([sshd.target()], "true", sshd.known_hosts())


def test_giving_up_early_ends_the_worker(sshd: LoopbackSshd) -> None:
    """Closing the iterator ends the process and with it every connection."""
    before = set(children_of(os.getpid()))
    task = Task("read -r seconds; sleep $seconds", {"one": "0\n", "two": "25\n"}, 30.0, sshd.known_hosts())
    answers = fanout.ask_all([sshd.target("one"), sshd.target("two")], task)
    assert next(answers).host == "one"
    started = time.monotonic()

    answers.close()  # type: ignore[attr-defined]

    assert time.monotonic() - started < 10
    assert set(children_of(os.getpid())) <= before


def test_the_worker_ends_with_its_parent(sshd: LoopbackSshd) -> None:
    """A controller that is killed leaves no worker behind."""
    program = (
        "from primus_bootstrap.fleet.fanout import ask_all; from primus_bootstrap.fleet.messages import Target, Task;"
        f"list(ask_all([{sshd.target()!r}.__class__(*{_fields(sshd.target())!r})], Task('sleep 60', {{}}, 60.0, {sshd.known_hosts()!r})))"
    ).replace(repr(sshd.target()) + ".__class__", "Target")
    parent = subprocess.Popen([sys.executable, "-c", program])
    workers = until(lambda: children_of(parent.pid), "a worker")
    time.sleep(1.0)

    parent.kill()
    parent.wait()

    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), f"the end of {workers}", limit_s=20)


def _fields(target: Target) -> tuple[object, ...]:
    return target.host, target.address, target.port, target.user, target.key_file
