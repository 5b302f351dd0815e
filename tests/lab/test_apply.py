"""Test apply on real hosts, and with faults during a run."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.engine.plan import make_plan
from primus_bootstrap.inventory.load import load_cluster
from tests.lab.lab_rig import ROOT, run_cli, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(1800),
    pytest.mark.long("primus_bootstrap/engine", "primus_bootstrap/cli", "primus_bootstrap/inventory", "primus_bootstrap/lab", "playbooks"),
]

HOSTS = ("node1", "node2", "node3")


def result_of(report: dict[str, Any], host: str) -> dict[str, Any]:
    """Return one host of a report."""
    found: dict[str, Any] = next(item for item in report["hosts"] if item["host"] == host)
    return found


def processes_of(lab: RunningLab) -> list[str]:
    """Return the command lines of processes of this lab's runs, which have its state folder in arguments or environment."""
    mark = str(lab.state_dir).encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes()
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if int(process.name) != os.getpid() and text and (mark in text or mark in environment):
            found.append(text.replace(b"\0", b" ").decode(errors="replace"))
    return found


class BackgroundApply:
    """An apply that runs in the background."""

    def __init__(self, lab: RunningLab) -> None:
        """Start the apply with its output in files."""
        self.errors = lab.folder / "apply.err"
        self.output = lab.folder / "apply.out"
        argv = [sys.executable, "-m", "primus_bootstrap", "apply", str(lab.hosts_file), "--yes"]
        with self.errors.open("w") as errors, self.output.open("w") as output:
            self.process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=errors, start_new_session=True)

    def wait_for_output(self, words: str, *, timeout_s: float = 300) -> None:
        """Wait for a text on stderr."""
        assert wait_for(lambda: words in self.errors.read_text() or self.process.poll() is not None, timeout_s=timeout_s), (
            self.errors.read_text()
        )
        assert words in self.errors.read_text(), self.errors.read_text() + self.output.read_text()

    def end(self, *, timeout_s: float = 600) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(timeout=timeout_s)


@pytest.fixture(scope="module", autouse=True)
def converged(lab: RunningLab) -> None:
    """The first apply of a new user."""
    done = lab.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    assert {host["result"] for host in lab.last_report()["hosts"]} == {"changed"}


@pytest.fixture
def background(lab: RunningLab) -> Iterator[Callable[[], BackgroundApply]]:
    """Start applies in the background, and end them after the test."""
    started: list[BackgroundApply] = []

    def start() -> BackgroundApply:
        started.append(BackgroundApply(lab))
        return started[-1]

    yield start
    for item in started:
        if item.process.poll() is None:
            item.process.send_signal(signal.SIGTERM)
            item.end(timeout_s=60)


def test_second_apply_changes_nothing(lab: RunningLab) -> None:
    """The exit code is 0, and no task changes a host."""
    done = lab.apply()

    assert done.returncode == 0, done.stdout + done.stderr
    report = lab.last_report()
    assert {host["host"]: host["changed"] for host in report["hosts"]} == dict.fromkeys(HOSTS, 0)
    planned = [step.phase for step in make_plan(load_cluster(lab.hosts_file)).steps]
    assert [phase["phase"] for phase in report["phases"]] == planned
    assert {"preflight", "baseline", "gpu", "bench", "verify"} <= set(planned)
    assert "next steps" in done.stdout


def test_plain_ansible_changes_nothing_after_apply(lab: RunningLab) -> None:
    """`ansible-playbook -i hosts.yaml playbooks/site.yml` changes nothing."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(lab.hosts_file), "playbooks/site.yml"]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_SSH_ARGS": f"-o UserKnownHostsFile={lab.state_dir}/known_hosts -o StrictHostKeyChecking=yes",
    }
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"changed=0 .* failed=0", done.stdout)) == len(HOSTS), done.stdout


def test_difference_is_shown_and_applied(lab: RunningLab) -> None:
    """`diff` names the host and the change without changing it; apply corrects it."""
    lab.execute("node2", "rm", "-r", "/etc/primus")

    shown = run_cli("diff", str(lab.hosts_file), "--json")
    again = run_cli("diff", str(lab.hosts_file), "--json")
    done = lab.apply()

    assert shown.returncode == again.returncode == done.returncode == 0, shown.stderr + done.stderr
    differences = json.loads(shown.stdout)["differences"]
    assert {item["host"] for item in differences} == {"node2"}
    assert json.loads(again.stdout)["differences"] == differences
    assert result_of(lab.last_report(), "node2")["result"] == "changed"
    assert result_of(lab.last_report(), "node1")["result"] == "ok"


def test_phase_and_limit_restrict_an_apply(lab: RunningLab) -> None:
    """`--phase` and `--limit` restrict an apply to one phase on one host."""
    done = lab.apply("--phase", "gpu", "--limit", "node3")

    assert done.returncode == 0, done.stderr
    report = lab.last_report()
    assert [host["host"] for host in report["hosts"]] == ["node3"]
    assert [phase["phase"] for phase in report["phases"]] == ["gpu"]


@pytest.mark.fault(cheap=True)
def test_killed_host_does_not_stop_others(lab: RunningLab, background: Callable[[], BackgroundApply]) -> None:
    """The others finish, and exit code 4 and the report name the dead host; after its return apply succeeds."""
    run = background()
    run.wait_for_output("[1/5] preflight:")
    lab.fault("kill", "node2")

    code = run.end()
    report = lab.last_report()
    lab.heal()
    after = lab.apply()

    assert code == 4, run.errors.read_text()
    assert result_of(report, "node2")["result"] == "unreachable"
    assert result_of(report, "node2")["failures"][0]["cause"]
    assert {result_of(report, name)["result"] for name in ("node1", "node3")} <= {"ok", "changed"}
    assert "node2" in run.output.read_text()
    assert after.returncode == 0, after.stdout + after.stderr


@pytest.mark.fault(cheap=True)
def test_second_apply_at_the_same_time_is_refused(lab: RunningLab, background: Callable[[], BackgroundApply]) -> None:
    """The exit code is 5, with the process and run of the lock; the first apply continues."""
    run = background()
    run.wait_for_output("apply ")
    assert wait_for(lambda: (lab.state_dir / "lock").exists() and bool(processes_of(lab)), timeout_s=60)
    time.sleep(1)

    second = lab.apply()

    assert second.returncode == 5, second.stdout + second.stderr
    assert str(run.process.pid) in second.stderr
    assert "fix:" in second.stderr
    assert run.end() == 0


@pytest.mark.fault(cheap=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_apply_ends_cleanly(lab: RunningLab, background: Callable[[], BackgroundApply], number: signal.Signals) -> None:
    """The exit code is 130, with a report and without remaining processes; the next apply succeeds."""
    run = background()
    run.wait_for_output("[1/5] preflight:")

    run.process.send_signal(number)
    code = run.end(timeout_s=60)

    assert code == 130
    assert lab.last_report()["exit_code"] == 130
    assert wait_for(lambda: not processes_of(lab), timeout_s=20), processes_of(lab)
    assert lab.apply().returncode == 0


def _kill_and_check(lab: RunningLab, background: Callable[[], BackgroundApply], moment_s: float) -> None:
    run = background()
    time.sleep(moment_s)
    run.process.kill()
    run.end(timeout_s=10)

    assert wait_for(lambda: not processes_of(lab), timeout_s=30), f"after {moment_s:.1f} s: {processes_of(lab)}"


@pytest.mark.fault(cheap=True)
def test_killed_controller_leaves_no_processes(lab: RunningLab, background: Callable[[], BackgroundApply]) -> None:
    """After SIGKILL there is no orphan and no stale lock, the journal is readable, and the next apply succeeds."""
    _kill_and_check(lab, background, 6.0)

    listed = run_cli("runs", str(lab.hosts_file))
    done = lab.apply()

    assert "killed" in listed.stdout
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.fault
def test_apply_converges_after_ten_kills(lab: RunningLab, background: Callable[[], BackgroundApply]) -> None:
    """After ten SIGKILLs of a first apply, one apply completes it, and a second changes nothing."""
    lab.renew()
    seed = random.SystemRandom().randrange(10_000)
    moments = random.Random(seed)  # noqa: S311 - moments, not keys
    print(f"seed {seed}")  # noqa: T201 - shown by pytest where the test fails
    for _ in range(10):
        _kill_and_check(lab, background, moments.uniform(0.3, 25.0))

    done = lab.apply()
    again = lab.apply()

    assert done.returncode == 0, done.stdout + done.stderr
    assert again.returncode == 0
    assert {host["changed"] for host in lab.last_report()["hosts"]} == {0}


@pytest.mark.fault(cheap=True)
def test_changed_host_key_stops_only_its_host(lab: RunningLab) -> None:
    """The report names the host and how to accept the key; the others finish."""
    keep = "cp -a /etc/ssh /root/ssh.kept && rm /etc/ssh/ssh_host_* && ssh-keygen -A && systemctl restart ssh"
    assert lab.execute("node3", "sh", "-c", keep).returncode == 0
    try:
        done = lab.apply()
        report = lab.last_report()
    finally:
        lab.execute("node3", "sh", "-c", "rm -r /etc/ssh && mv /root/ssh.kept /etc/ssh && systemctl restart ssh")

    assert done.returncode == 4
    stopped = result_of(report, "node3")
    assert stopped["result"] == "unreachable"
    assert "key" in stopped["failures"][0]["cause"].lower()
    assert "known_hosts" in stopped["failures"][0]["fix"]
    assert {result_of(report, name)["result"] for name in ("node1", "node2")} <= {"ok", "changed"}
    assert lab.apply().returncode == 0


@pytest.mark.fault(cheap=True)
def test_full_disk_is_reported_as_the_cause(lab: RunningLab) -> None:
    """The host with a full disk fails with that cause, and the others finish; afterwards apply succeeds."""
    full = "mkdir -p /etc/primus && mount -t tmpfs -o size=16k tmpfs /etc/primus && dd if=/dev/zero of=/etc/primus/filler bs=1k"
    lab.execute("node1", "sh", "-c", full)
    try:
        done = lab.apply()
        report = lab.last_report()
    finally:
        assert lab.execute("node1", "umount", "/etc/primus").returncode == 0

    assert done.returncode == 4, done.stdout
    assert "no space left on device" in result_of(report, "node1")["failures"][0]["cause"].lower()
    assert {result_of(report, name)["result"] for name in ("node2", "node3")} <= {"ok", "changed"}
    assert lab.apply().returncode == 0


@pytest.mark.fault(cheap=True)
def test_denied_sudo_is_reported_as_the_cause(lab: RunningLab) -> None:
    """The host fails in preflight with a fix, and nothing changes on it."""
    aside = "mkdir /root/sudoers.kept && grep -lw primus /etc/sudoers.d/* | xargs -I{} mv {} /root/sudoers.kept/"
    assert lab.execute("node2", "sh", "-c", aside).returncode == 0
    try:
        done = lab.apply()
        report = lab.last_report()
    finally:
        lab.execute("node2", "sh", "-c", "mv /root/sudoers.kept/* /etc/sudoers.d/ && rmdir /root/sudoers.kept")

    assert done.returncode == 4
    denied = result_of(report, "node2")
    assert denied["result"] == "failed"
    assert denied["failures"][0]["phase"] == "preflight"
    assert "sudo" in denied["failures"][0]["cause"]
    assert denied["failures"][0]["fix"]
    assert lab.apply().returncode == 0


def test_hosts_behind_a_bastion_are_configured(lab: RunningLab, tmp_path: Path) -> None:
    """`ansible_ssh_common_args` with a jump host works, also for probe and the first contact."""
    known = f"-o UserKnownHostsFile={lab.state_dir}/known_hosts"
    jump = f"ssh -F none -i {lab.state_dir}/ssh/id_ed25519 {known} -W %h:%p primus@{lab.address('node1')}"
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "hosts.yaml").write_text(
        "all:\n"
        "  vars:\n"
        "    cluster_name: inside\n"
        "    ansible_user: primus\n"
        f"    ansible_ssh_private_key_file: {lab.state_dir}/ssh/id_ed25519\n"
        f'    ansible_ssh_common_args: -o ProxyCommand="{jump}"\n'
        "  children:\n"
        "    gpu_node:\n"
        "      hosts:\n"
        f"        far: {{ansible_host: {lab.address('node2')}}}\n"
    )

    done = run_cli("apply", str(inside), "--yes", "--phase", "preflight")
    probed = run_cli("probe", str(inside), "--json")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "host key of far" in done.stderr
    assert probed.returncode == 0, probed.stdout + probed.stderr
    accepted = lab.execute("node2", "sh", "-c", "journalctl -u ssh -o cat | grep 'Accepted publickey' | tail -n 1").stdout
    assert lab.address("node1") in accepted
