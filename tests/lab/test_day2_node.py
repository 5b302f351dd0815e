"""Test adding, removing and replacing a host of a running Slurm cluster; each verb runs twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_fixture import create_lab
from tests.lab.lab_rig import ROOT, RunningLab, run_cli, wait_for
from tests.lab.slurm_rig import Jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(3600)]

# A lab that is up already, by its folder, to be used and left as it is: for writing tests.
_KEPT = os.environ.get("PRIMUS_TEST_DAY2")
SPARE = "node4"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """A Slurm cluster: node1 is the controller, node2 and node3 compute; node4 is a spare."""
    if _KEPT:
        folder = Path(_KEPT)
        yield RunningLab(re.findall(r"cluster_name: (\S+)", (folder / "hosts.yaml").read_text())[0], folder)
        return
    for lab in create_lab(RunningLab(f"test{os.getpid()}-d", tmp_path_factory.mktemp("day2")), "--core", "--nodes", "3", "--spare", "1"):
        text = lab.hosts_file.read_text()
        for start, end in (
            ("    # A job of high", "  hosts:\n"),
            ("    slurm_accounting:\n", "    # Files that"),
            ("    # Files that", None),
        ):
            before, _, rest = text.partition(start)
            text = before + (end + rest.partition(end)[2] if end else "")
        lab.hosts_file.write_text(text)
        done = lab.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield lab


@pytest.fixture
def jobs(small: RunningLab) -> Jobs:
    """Jobs on that cluster."""
    return Jobs(small)


def node(lab: RunningLab, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a verb of `node`, which must succeed."""
    done = run_cli("node", verb, str(lab.hosts_file), *words, timeout_s=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def spare_address(lab: RunningLab) -> str:
    """Return the address of the spare host."""
    first, last = lab.address("node1").rsplit(".", 1)
    return f"{first}.{int(last) + 3}"


def add_spare(lab: RunningLab) -> subprocess.CompletedProcess[str]:
    """Add the spare host to the groups of node2."""
    return node(lab, "add", SPARE, "--host", spare_address(lab), "--like", "node2", "--yes")


def contacts(lab: RunningLab, name: str) -> int:
    """Return the number of logins of a host."""
    return int(lab.sh(name, "journalctl -u ssh -o cat | grep -c 'Accepted publickey' || true"))


def hold(lab: RunningLab, name: str, seconds: int = 600) -> str:
    """Submit a job that occupies one host, and wait until it runs."""
    words = f"sbatch --parsable {f'-w {name}' if name else ''} --exclusive -t 20 --chdir=/tmp --output=/dev/null --wrap 'sleep {seconds}'"
    job = lab.sh("node1", words)
    Jobs(lab).wait_until(job, "RUNNING")
    return job


def test_new_node_computes(small: RunningLab, jobs: Jobs) -> None:
    """It runs a job; only it and the controller were contacted. A second run changes nothing."""
    text = small.hosts_file.read_text()
    others = {name: contacts(small, name) for name in ("node2", "node3")}

    done = add_spare(small)
    touched = {host["host"] for host in small.last_report()["hosts"]}
    again = add_spare(small)

    assert touched == {SPARE, "node1"}
    assert {name: contacts(small, name) for name in others} == others
    assert f"+    {SPARE}: {{ansible_host: {spare_address(small)}}}" in done.stderr
    added = [line for line in small.hosts_file.read_text().splitlines() if line not in text.splitlines()]
    assert [line.strip().split(":")[0] for line in added] == [SPARE] * len(added)
    assert wait_for(lambda: jobs.node_state(SPARE)[0] == "IDLE", timeout_s=60, every_s=1), jobs.node_state(SPARE)
    assert small.sh("node1", f"srun -w {SPARE} -t 1 hostname -s") == SPARE
    assert "nothing to do" in again.stderr
    assert small.last_report()["changes"] == []


def test_plain_ansible_changes_nothing_for_an_existing_node(small: RunningLab) -> None:
    """`ansible-playbook playbooks/day2/add_node.yml -e node=NAME` changes nothing."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(small.hosts_file), "playbooks/day2/add_node.yml"]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_SSH_ARGS": f"-o UserKnownHostsFile={small.state_dir}/known_hosts -o StrictHostKeyChecking=yes",
    }
    done = subprocess.run(
        [*argv, "-e", f"node={SPARE}"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    recap = dict(re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+) ", done.stdout, re.MULTILINE))
    assert recap == {SPARE: "0", "node1": "0", "localhost": "0"}


def test_node_is_removed_after_its_job_was_requeued(small: RunningLab, jobs: Jobs) -> None:
    """With --force its job is requeued, Slurm removes the node, and hosts.yaml is as before."""
    job = hold(small, SPARE)

    done = node(small, "remove", SPARE, "--confirm", small.name, "--force")
    requeued = jobs.show(job)
    again = node(small, "remove", SPARE, "--confirm", small.name)
    small.sh("node1", f"scancel {job}")

    assert requeued["Restarts"] == "1"
    assert f"removed {SPARE} from the cluster" in done.stderr
    assert SPARE not in small.hosts_file.read_text()
    assert SPARE not in small.sh("node1", "sinfo --noheader --Node --format=%N")
    assert small.execute(SPARE, "systemctl", "is-active", "slurmd").stdout.strip() == "inactive"
    assert small.execute(SPARE, "ls", "/etc/munge/munge.key", "/etc/juicefs/secrets.env", "/etc/juicefs/meta-password").stdout == ""
    assert "nothing to do" in again.stdout
    assert SPARE not in (small.state_dir / "known_hosts").read_text()


def test_interrupted_removal_is_finished(small: RunningLab, jobs: Jobs) -> None:
    """After SIGKILL during the wait, hosts.yaml has the host; the same command removes it."""
    add_spare(small)
    job = hold(small, SPARE)
    argv = [sys.executable, "-m", "primus_bootstrap", "node", "remove", str(small.hosts_file), SPARE, "--confirm", small.name]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert wait_for(lambda: "DRAIN" in jobs.node_state(SPARE)[0], timeout_s=120, every_s=0.5)
        process.kill()

    assert SPARE in small.hosts_file.read_text()
    small.sh("node1", f"scancel {job}")
    node(small, "remove", SPARE, "--confirm", small.name)

    assert SPARE not in small.hosts_file.read_text()


def test_dead_node_is_replaced(small: RunningLab, jobs: Jobs) -> None:
    """Without --dead the verb fails; with it the spare replaces the host, and the job runs again."""
    # A job that asks for the very node that goes would end with it.
    small.sh("node1", "scontrol update nodename=node2 state=drain reason=test")
    job = hold(small, "", seconds=40)
    small.sh("node1", "scontrol update nodename=node2 state=resume")
    small.fault("kill", "node3")
    words = ("node3", SPARE, "--host", spare_address(small), "--confirm", small.name)
    try:
        refused = run_cli("node", "replace", str(small.hosts_file), *words)
        done = node(small, "replace", *words, "--dead")
        small.sh("node1", f"scontrol update jobid={job} StartTime=now || true")
        finished = jobs.wait_until(job, "COMPLETED", timeout_s=180)
        again = node(small, "replace", *words, "--dead")
    finally:
        small.fault("start", "node3")

    assert refused.returncode == 3
    assert "--dead" in refused.stderr
    assert finished["Restarts"] == "1"
    assert "removed node3 from the cluster" in done.stderr
    assert "the disk of node3 still contains secrets of the cluster" in done.stderr
    assert SPARE in small.hosts_file.read_text()
    assert "node3" not in small.hosts_file.read_text()
    assert sorted(set(small.sh("node1", "sinfo --noheader --Node --format=%N").split())) == ["node2", SPARE]
    assert "nothing to do" in again.stdout


def test_reinstalled_node_needs_its_new_host_key(small: RunningLab, jobs: Jobs) -> None:
    """A new host key is refused until it is given; then the host is configured and computes."""
    small.sh("node2", "rm /etc/ssh/ssh_host_*; ssh-keygen -A > /dev/null; systemctl restart ssh; rm -rf /etc/primus /var/lib/primus/origin")
    key = " ".join(small.sh("node2", "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2])
    wrong = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJvZ3VzLS0tYm9ndXMtLS1ib2d1cy0tLWJvZ3VzLS0t"

    unasked = run_cli("node", "replace", str(small.hosts_file), "node2", "node2")
    refused = run_cli("node", "replace", str(small.hosts_file), "node2", "node2", "--host-key", wrong)
    node(small, "replace", "node2", "node2", "--host-key", key)
    again = run_cli("node", "replace", str(small.hosts_file), "node2", "node2", "--json")

    assert unasked.returncode == refused.returncode == 3
    assert f"--host-key '{key}'" in unasked.stderr
    assert "another key" in refused.stderr
    assert key.split()[1] in (small.state_dir / "known_hosts").read_text()
    assert json.loads(again.stdout)["changes"] == []
    assert wait_for(lambda: jobs.node_state("node2")[0] == "IDLE", timeout_s=60, every_s=1), jobs.node_state("node2")
