"""Runs with the real Ansible, on local connections and over a real sshd."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content
from primus_bootstrap.core.errors import LockedError
from primus_bootstrap.engine.events import Event, HostPinned, HostResult, PhaseStarted, TaskStarted
from primus_bootstrap.engine.history import delete_old_runs, last_report, list_runs
from primus_bootstrap.engine.lock import cluster_lock, read_holder
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.run import Options, apply_plan
from primus_bootstrap.engine.ssh import known_hosts_path
from primus_bootstrap.engine.state_folder import RUNNER_LEFTOVERS
from tests.integration.sshd_rig import PrivateSshd, has_sshd
from tests.unit.engine_rig import LOCAL, free_port, make_cluster, write_playbooks
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from primus_bootstrap.engine.report import Report
    from primus_bootstrap.inventory.cluster import Cluster

needs_sshd = pytest.mark.skipif(not has_sshd(), reason="needs root and /usr/sbin/sshd (Debian: openssh-server)")

PING = """---
- name: Ask every host
  hosts: all
  gather_facts: false
  tasks:
    - name: Answer
      ansible.builtin.ping:
"""
SLEEP = """---
- name: Wait for long
  hosts: all
  gather_facts: false
  tasks:
    - name: Sleep
      ansible.builtin.command: sleep 300
      changed_when: false
"""


@pytest.fixture
def sshds(tmp_path: Path) -> Iterator[tuple[PrivateSshd, PrivateSshd]]:
    """Run two sshds with different keys."""
    servers = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        servers.append(PrivateSshd(folder, free_port()))
        servers[-1].start()
    yield servers[0], servers[1]
    for server in servers:
        server.stop()


def run(
    cluster: Cluster,
    options: Options | None = None,
    events: list[Event] | None = None,
    *,
    limit: str | None = None,
) -> Report:
    """Make a plan and apply it."""
    plan = make_plan(cluster, limit=limit)
    options = options or Options(limited=bool(limit))
    return apply_plan(cluster, plan, options, on_event=(events if events is not None else []).append, cancel=threading.Event())


def use_playbooks(monkeypatch: pytest.MonkeyPatch, folder: Path, phases: Mapping[str, str]) -> None:
    """Make the engine use these playbooks."""
    playbooks = write_playbooks(folder, phases)
    monkeypatch.setattr(content, "playbooks_dir", lambda: playbooks)


def results(report: Report) -> dict[str, str]:
    """Return the result of each host."""
    return {host.host: host.result for host in report.hosts}


def local_cluster(folder: Path, groups: Mapping[str, Sequence[str]]) -> Cluster:
    """Return a cluster whose hosts all are this machine."""
    return make_cluster(folder, groups, {host: LOCAL for members in groups.values() for host in members})


def test_second_apply_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run is `ok` without changes. The report of the first run lists the changes and the numbers of hosts."""
    write = "---\n- name: Write\n  hosts: all\n  gather_facts: false\n  tasks:\n    - name: Write a file\n      ansible.builtin.copy:\n"
    write += f"        dest: {tmp_path}/{{{{ inventory_hostname }}}}.txt\n        content: here\n        mode: '0600'\n"
    use_playbooks(monkeypatch, tmp_path, {"baseline": write})
    cluster = local_cluster(tmp_path, {"gpu_node": ["a", "b"]})

    first, second = run(cluster), run(cluster)

    assert (first.exit_code, results(first), first.changed) == (0, {"a": "changed", "b": "changed"}, 2)
    assert [(change.task, change.hosts) for change in first.changes] == [("Write a file", 2)]
    assert (second.exit_code, results(second), second.changed) == (0, {"a": "ok", "b": "ok"}, 0)


def test_a_failing_host_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only host of a phase fails, so Ansible skips all later plays, but the other hosts finish the run."""
    fails = "---\n- name: Monitor\n  hosts: prometheus\n  gather_facts: false\n  tasks:\n    - name: Fail\n      ansible.builtin.fail:\n"
    fails += "        msg: 'the disk is full. Fix: free some space'\n"
    use_playbooks(monkeypatch, tmp_path, {"preflight": PING, "monitoring": fails, "storage": PING.replace("all", "redis")})
    cluster = local_cluster(tmp_path, {"prometheus": ["p"], "redis": ["r"]})
    events: list[Event] = []

    report = run(cluster, events=events)

    (failed,) = report.with_result("failed")
    assert (report.exit_code, results(report)) == (4, {"p": "failed", "r": "ok"})
    assert (failed.failures[0].cause, failed.failures[0].fix) == ("the disk is full.", "free some space")
    assert {phase.phase: phase.state for phase in report.phases} == {"preflight": "done", "monitoring": "aborted", "storage": "done"}
    assert [(event.phase, event.number, event.count) for event in events if isinstance(event, PhaseStarted)][-1] == ("storage", 3, 3)


def test_a_chained_run_ends_with_the_first_failed_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later phases contact no host."""
    fails = (
        "---\n- name: Drain\n  hosts: slurm_controller\n  gather_facts: false\n  tasks:\n    - name: Fail\n      ansible.builtin.fail:\n"
    )
    use_playbooks(monkeypatch, tmp_path, {"drain": fails, "stop": PING.replace("all", "slurm_node")})
    cluster = local_cluster(tmp_path, {"slurm_controller": ["c"], "slurm_node": ["n"]})

    report = run(cluster, Options(verb="node remove n", chained=True))

    assert (report.exit_code, results(report)) == (4, {"c": "failed", "n": "not_reached"})
    assert {phase.phase: phase.state for phase in report.phases} == {"drain": "aborted", "stop": "not_reached"}


def test_any_errors_fatal_stops_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that did not fail are `not_reached`, not `ok`."""
    fatal = "---\n- name: Quorum\n  hosts: etcd\n  gather_facts: false\n  any_errors_fatal: true\n  tasks:\n    - name: Fail on e1\n"
    fatal += "      ansible.builtin.fail:\n        msg: bad\n      when: inventory_hostname == 'e1'\n"
    use_playbooks(monkeypatch, tmp_path, {"kubernetes": fatal, "storage": PING.replace("all", "redis")})
    cluster = local_cluster(tmp_path, {"etcd": ["e1", "e2", "e3"], "redis": ["r"]})

    report = run(cluster)

    assert (report.exit_code, results(report)) == (4, {"e1": "failed", "e2": "not_reached", "e3": "not_reached", "r": "not_reached"})


def test_a_limited_run_contacts_only_its_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other hosts are not in the report either."""
    use_playbooks(monkeypatch, tmp_path, {"preflight": PING})
    cluster = local_cluster(tmp_path, {"gpu_node": ["a", "b"]})
    events: list[Event] = []

    report = run(cluster, events=events, limit="b")

    assert results(report) == {"b": "ok"}
    assert {event.host for event in events if isinstance(event, HostResult)} == {"b"}


def test_diff_changes_nothing_and_shows_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check mode reports the difference, and the file does not exist afterwards."""
    write = "---\n- name: Write\n  hosts: all\n  gather_facts: false\n  tasks:\n    - name: Write a file\n      ansible.builtin.copy:\n"
    write += f"        dest: {tmp_path}/out.txt\n        content: 'a line'\n        mode: '0600'\n"
    use_playbooks(monkeypatch, tmp_path, {"baseline": write})
    events: list[Event] = []

    report = run(local_cluster(tmp_path, {"gpu_node": ["a"]}), Options(verb="diff", check=True), events)

    (changed,) = [event for event in events if isinstance(event, HostResult)]
    assert (report.exit_code, report.verb, changed.status) == (0, "diff", "changed")
    assert "+a line" in changed.diff
    assert not (tmp_path / "out.txt").exists()


def test_secrets_are_neither_in_arguments_nor_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible gets passwords and key=value variables, but no argument and no file of the state contains them."""
    secret = tmp_path / "secret.yml"
    secret.write_text("inner: inner-word\n", encoding="utf-8")
    command = [str(Path(sys.executable).with_name("ansible-vault")), "encrypt", "--vault-password-file", "/dev/stdin", str(secret)]
    subprocess.run(command, input="vault-word", capture_output=True, text=True, check=True, cwd=tmp_path)
    use = "---\n- name: Use\n  hosts: all\n  gather_facts: false\n  tasks:\n    - name: Use the secrets\n      ansible.builtin.assert:\n"
    use += "        that: [inner | length == 10, extra == 'extra word=1']\n        quiet: true\n"
    use_playbooks(monkeypatch, tmp_path, {"baseline": use})
    cluster = local_cluster(tmp_path, {"gpu_node": ["a"]})
    arguments: list[bytes] = []

    def look(event: Event) -> None:
        if isinstance(event, TaskStarted):
            arguments.extend(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
            unread = [path for path in private_dir(cluster).iterdir() if path.is_file()]
            arguments.extend(path.read_bytes() for path in unread)

    options = Options(
        vault_password="vault-word",
        become_password="become-word",
        extra_vars=(f"@{secret}", "extra=extra word=1"),
    )
    report = apply_plan(cluster, make_plan(cluster), options, on_event=look, cancel=threading.Event())

    files = [path.read_bytes() for path in cluster.state_dir.rglob("*") if path.is_file()]
    assert report.exit_code == 0, report.hosts
    assert any(b"ansible-playbook" in text for text in arguments)
    for word in (b"vault-word", b"become-word", b"extra word", b"inner-word"):
        assert not any(word in text for text in [*files, *arguments])
    assert not list(cluster.state_dir.rglob("job_events"))
    assert not list(cluster.state_dir.rglob("command"))
    assert "-word" not in repr(options)


def test_an_error_of_ansible_itself_is_the_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A playbook that Ansible cannot read has exit code 4, with Ansible's error message."""
    use_playbooks(monkeypatch, tmp_path, {"baseline": "---\n- name: Broken\n  hosts: all\n  tasks:\n    - no_such_module_here:\n"})

    report = run(local_cluster(tmp_path, {"gpu_node": ["a"]}))

    assert (report.exit_code, results(report)) == (4, {"a": "not_reached"})
    assert "no_such_module_here" in report.problem


def test_a_hidden_cause_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the interpreter fails, the report has its error message instead of `modules failed to execute`."""
    python = tmp_path / "broken-python"
    python.write_text("#!/bin/sh\necho 'libfancy.so.1: cannot open shared object file' >&2\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    use_playbooks(monkeypatch, tmp_path, {"baseline": PING.replace("gather_facts: false", "gather_facts: true")})
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": {**LOCAL, "ansible_python_interpreter": str(python)}})

    (host,) = run(cluster).hosts

    assert "libfancy.so.1: cannot open shared object file" in host.failures[0].cause


@needs_sshd
def test_a_host_with_a_changed_host_key_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshds: tuple[PrivateSshd, PrivateSshd]
) -> None:
    """Other hosts continue. The inventory cannot disable the check, and the fix works."""
    one, two = sshds
    use_playbooks(monkeypatch, tmp_path, {"preflight": PING})
    softened = {**two.variables(), "ansible_host_key_checking": False, "ansible_ssh_common_args": "-o StrictHostKeyChecking=no"}
    cluster = make_cluster(tmp_path, {"gpu_node": ["a", "b"]}, {"a": one.variables(), "b": softened})
    events: list[Event] = []
    first = run(cluster, events=events)
    two.change_host_key()

    second = run(cluster)
    failure = second.with_result("unreachable")[0].failures[0]
    subprocess.run(["ssh-keygen", "-f", str(known_hosts_path(cluster)), "-R", f"[127.0.0.1]:{two.port}"], check=True, capture_output=True)
    third = run(cluster)

    assert (first.exit_code, [event.host for event in events if isinstance(event, HostPinned)]) == (0, ["a", "b"])
    assert (second.exit_code, results(second)) == (4, {"a": "ok", "b": "unreachable"})
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in failure.cause
    assert f"ssh-keygen -f {known_hosts_path(cluster)} -R '[127.0.0.1]:{two.port}'" in failure.fix
    assert (third.exit_code, results(third)) == (0, {"a": "ok", "b": "ok"})


@needs_sshd
def test_a_host_with_another_host_key_in_hosts_yaml_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshds: tuple[PrivateSshd, PrivateSshd]
) -> None:
    """It is not contacted, and the message has both keys."""
    one, two = sshds
    use_playbooks(monkeypatch, tmp_path, {"preflight": PING})
    run(make_cluster(tmp_path, {"gpu_node": ["a", "b"]}, {"a": one.variables(), "b": two.variables()}))
    pinned = {**two.variables(), "host_key": one.public_key}

    report = run(make_cluster(tmp_path, {"gpu_node": ["a", "b"]}, {"a": one.variables(), "b": pinned}))

    (host,) = report.with_result("unreachable")
    assert (report.exit_code, host.host) == (4, "b")
    assert host.failures[0].cause.startswith("host_key in hosts.yaml is SHA256:")


@needs_sshd
def test_an_unreachable_host_has_the_error_message_of_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sshds: tuple[PrivateSshd, PrivateSshd]
) -> None:
    """The others finish, and the report has a fix."""
    one, two = sshds
    use_playbooks(monkeypatch, tmp_path, {"preflight": PING})
    cluster = make_cluster(tmp_path, {"gpu_node": ["a", "b"]}, {"a": one.variables(), "b": two.variables()})
    run(cluster)
    two.stop()

    report = run(cluster)

    assert (report.exit_code, results(report)) == (4, {"a": "ok", "b": "unreachable"})
    failure = report.with_result("unreachable")[0].failures[0]
    assert "Connection refused" in failure.cause
    assert failure.fix.startswith("start sshd on b")


def test_a_cancelled_run_has_exit_code_130_and_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible and its task end within seconds, the lock is free, and the host is `interrupted`."""
    use_playbooks(monkeypatch, tmp_path, {"baseline": SLEEP})
    cluster = local_cluster(tmp_path, {"gpu_node": ["a"]})
    cancel = threading.Event()
    cancelled: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, TaskStarted):
            cancelled.append(time.monotonic())
            cancel.set()

    report = apply_plan(cluster, make_plan(cluster), Options(), on_event=on_event, cancel=cancel)

    assert (report.exit_code, results(report), report.killed) == (130, {"a": "interrupted"}, False)
    assert time.monotonic() - cancelled[0] < 20
    assert last_report(cluster.state_dir) == report
    assert read_holder(cluster.state_dir) is None


_CONTROLLER = """
import sys, threading
from pathlib import Path
from primus_bootstrap import content
from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.engine.run import Options, apply_plan
from tests.unit.engine_rig import LOCAL, make_cluster
folder = Path(sys.argv[1])
content.playbooks_dir = lambda: folder / "playbooks"
cluster = make_cluster(folder, {"gpu_node": ["a", "b"]}, {"a": LOCAL, "b": LOCAL})
plan = make_plan(cluster)
apply_plan(cluster, plan, Options(), on_event=lambda event: print(type(event).__name__, flush=True), cancel=threading.Event())
"""


@pytest.mark.parametrize("moment", ["RunStarted", "PhaseStarted", "TaskStarted", "asleep"])
def test_a_killed_controller_leaves_nothing_behind(tmp_path: Path, moment: str) -> None:
    """After SIGKILL at several moments, all processes of the run end within seconds, the lock is free, and the journal is readable."""
    write_playbooks(tmp_path, {"baseline": SLEEP})
    mark = f"PRIMUS_TEST_MARK={tmp_path}"
    environment = {**os.environ, "PRIMUS_TEST_MARK": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", _CONTROLLER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as controller:
        assert controller.stdout is not None
        while (line := controller.stdout.readline().strip()) != ("TaskStarted" if moment == "asleep" else moment):
            assert line, "the controller ended before the moment came"
        if moment == "asleep":
            until(lambda: any(b"sleep\x00300" in command for command in marked(mark)), "the task")
        controller.kill()

    cluster = local_cluster(tmp_path, {"gpu_node": ["a", "b"]})
    until(lambda: not marked(mark), lambda: marked(mark), limit_s=30)
    with cluster_lock(cluster.state_dir, verb="apply", run="next", wait_s=1):
        report = last_report(cluster.state_dir)
        notes = [path.read_text(encoding="utf-8") for path in cluster.state_dir.rglob("private")]
        delete_old_runs(cluster.state_dir)

    assert not any(note and Path(note).exists() for note in notes)  # empty where the kill came between open and write
    assert marked(mark) == []
    assert not list(cluster.state_dir.rglob("private"))
    assert not [path for name in RUNNER_LEFTOVERS for path in cluster.state_dir.rglob(name)]
    assert report is not None
    assert (report.killed, report.exit_code) == (True, 130)


def test_a_second_apply_reports_the_holder_of_the_lock(tmp_path: Path) -> None:
    """The exit code is 5, with verb, user, machine and pid. The first run continues."""
    write_playbooks(tmp_path, {"baseline": SLEEP})
    with subprocess.Popen([sys.executable, "-c", _CONTROLLER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        controller.stdout.readline()
        state_dir = local_cluster(tmp_path, {"gpu_node": ["a", "b"]}).state_dir
        with (
            pytest.raises(LockedError, match=rf"locked by apply of .* \(pid {controller.pid}, ") as caught,
            cluster_lock(state_dir, verb="apply", run="x"),
        ):
            pass
        controller.kill()

    assert caught.value.exit_code == 5
    assert f"kill -INT {controller.pid}" in caught.value.fix


def subreaper() -> int:
    """Return whether this process adopts orphans."""
    found = ctypes.c_int(-1)
    ctypes.CDLL(None).prctl(37, ctypes.byref(found), 0, 0, 0)
    return found.value


def test_a_killed_supervisor_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After SIGKILL of the supervisor, all processes of the run end, the lock is free, and the problem is the signal.

    Other children of the caller continue, and the caller's setting for orphans is restored.
    """
    use_playbooks(monkeypatch, tmp_path, {"baseline": SLEEP})
    cluster = local_cluster(tmp_path, {"gpu_node": ["a", "b"]})
    monkeypatch.setenv("PRIMUS_TEST_MARK", str(tmp_path))
    killers: list[threading.Thread] = []

    def kill_shim() -> None:
        until(lambda: sum(b"sleep\x00300" in command for command in marked(f"PRIMUS_TEST_MARK={tmp_path}")) >= 2, "the task")
        os.kill(int((private_dir(cluster) / "shim.pid").read_text(encoding="ascii")), signal.SIGKILL)

    def on_event(event: Event) -> None:
        if isinstance(event, TaskStarted):
            killers.append(threading.Thread(target=kill_shim))
            killers[-1].start()

    before = subreaper()
    began = time.monotonic()
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "PRIMUS_TEST_MARK": "other"}) as child:
        report = apply_plan(cluster, make_plan(cluster), Options(), on_event=on_event, cancel=threading.Event())
        left = marked(f"PRIMUS_TEST_MARK={tmp_path}")
        child_lives = child.poll() is None
        child.kill()
    killers[0].join()

    assert (left, child_lives, subreaper()) == ([], True, before)
    assert (report.exit_code, report.problem) == (4, "Ansible was killed (signal 9)")
    assert time.monotonic() - began < 30
    with cluster_lock(cluster.state_dir, verb="apply", run="next", wait_s=0.1):
        assert not list(cluster.state_dir.rglob("private"))


def test_an_exception_of_on_event_ends_ansible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`apply_plan` raises it after Ansible has ended and the lock is free."""
    use_playbooks(monkeypatch, tmp_path, {"baseline": SLEEP})
    cluster = local_cluster(tmp_path, {"gpu_node": ["a"]})
    monkeypatch.setenv("PRIMUS_TEST_MARK", str(tmp_path))

    def refuse(event: Event) -> None:
        if isinstance(event, TaskStarted):
            raise KeyError("the view broke")

    with pytest.raises(KeyError, match="the view broke"):
        apply_plan(cluster, make_plan(cluster), Options(), on_event=refuse, cancel=threading.Event())

    assert marked(f"PRIMUS_TEST_MARK={tmp_path}") == []
    with cluster_lock(cluster.state_dir, verb="apply", run="next", wait_s=0.1):
        pass


def private_dir(cluster: Cluster) -> Path:
    """Return the folder for secrets and sockets of the current run."""
    (note,) = cluster.state_dir.rglob("private")
    return Path(note.read_text(encoding="utf-8"))


def marked(mark: str) -> list[bytes]:
    """Return the command lines of living processes with a mark in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\x00"):
                found.append((entry / "cmdline").read_bytes())
        except OSError:
            continue
    return found


def test_report_json_equals_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the schema, the exit code and every host."""
    use_playbooks(monkeypatch, tmp_path, {"preflight": PING})
    cluster = local_cluster(tmp_path, {"gpu_node": ["a"]})

    report = run(cluster)

    written = json.loads(list_runs(cluster.state_dir)[0].report.read_text(encoding="utf-8"))
    assert (written["schema"], written["exit_code"], [host["host"] for host in written["hosts"]]) == ("primus.report/1", 0, ["a"])
    assert last_report(cluster.state_dir) == report
