"""Test Slurm with two accounts: processes end with their job, hosts admit only owners of jobs, and jobs are private."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import wait_for
from tests.lab.security_rig import COMPUTE, SERVICE, pids, slept

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab
    from tests.lab.security_rig import People

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

TOKEN = "s3cret-token-of-bob"


def submit(people: People, account: str, script: str, *options: str) -> str:
    """Submit a batch script, and return the job's number."""
    words = f"sbatch --parsable --chdir=/jfs/home/{account} --output=/jfs/home/{account}/%j.out {' '.join(options)}"
    return people.allowed(account, SERVICE, f"{words} << 'EOF'\n#!/bin/sh\n{script}\nEOF\n", timeout_s=90)


def state(people: People, job: str) -> str:
    """Return a job's state as root; empty if the controller has no such job."""
    output = people.lab.execute(SERVICE, "scontrol", "--oneliner", "show", "job", job).stdout
    return output.partition("JobState=")[2].split(" ")[0]


def wait_until(people: People, job: str, *states: str) -> None:
    """Wait until a job is in one of these states."""
    assert wait_for(lambda: state(people, job) in states, timeout_s=120, every_s=0.5), state(people, job)


@pytest.fixture
def of_bob(people: People) -> Iterator[str]:
    """A job of bob on node3 with a secret on its command line."""
    job = submit(people, "bob", "exec sleep 36010", "--nodelist=node3", "--comment", TOKEN, "--job-name", TOKEN)
    wait_until(people, job, "RUNNING")
    yield job
    people.lab.execute(SERVICE, "scancel", job)
    wait_until(people, job, "CANCELLED", "COMPLETED", "")


@pytest.mark.fault
@pytest.mark.parametrize(
    "words",
    [
        "env -u SLURM_JOB_ID -u SLURMD_NODENAME setsid sleep 36020 &",
        "env -i setsid -f sleep 36020",
        "(trap '' TERM HUP INT; setsid -f nohup sleep 36020 > /dev/null 2>&1) &",
        'python3 -c \'import os; os.fork() or (os.setsid(), os.fork() or os.execve("/usr/bin/sleep", ["sleep", "36020"], {}))\'',
    ],
)
def test_processes_end_with_their_job(people: People, words: str) -> None:
    """Attack 10: a process without Slurm's variables, in its own session, or that ignores signals is ended."""
    job = submit(people, "ada", f"{words}\nsleep 3", "--nodelist=node3", "--time=2")
    began = wait_for(lambda: bool(pids(people.lab, "node3", slept("36020"))), timeout_s=90, every_s=0.5)
    wait_until(people, job, "COMPLETED", "FAILED")

    assert began, "the process never ran: the test shows nothing"
    assert wait_for(lambda: not pids(people.lab, "node3", slept("36020")), timeout_s=60, every_s=1)


@pytest.mark.fault
def test_end_of_a_job_keeps_another_job_of_the_account(people: People) -> None:
    """Two jobs of ada on one host: the end of one ends no process of the other."""
    long = submit(people, "ada", "exec sleep 36021", "--nodelist=node3")
    wait_until(people, long, "RUNNING")
    short = submit(people, "ada", "sleep 2", "--nodelist=node3")
    wait_until(people, short, "COMPLETED")
    time.sleep(5)  # an epilog that ends too much would have ended it by now
    alive = pids(people.lab, "node3", slept("36021"))
    people.lab.sh(SERVICE, f"scancel {long}")

    assert alive


@pytest.mark.fault(cheap=True)
def test_ssh_to_a_compute_host_needs_a_job(applied_cluster: RunningLab) -> None:
    """Attack 11: ssh without a job is refused with a reason and logged; the login host admits users."""
    since = time.time()
    refused = {node: applied_cluster.person(node, "hostname") for node in COMPUTE}
    read_journal = f"journalctl --sync; journalctl --quiet --output=cat --since=@{int(since)}"
    logged = applied_cluster.sh("node3", f"{read_journal} | grep -i 'ada' | head -n 20; true")

    assert {node: done.returncode for node, done in refused.items()} == dict.fromkeys(COMPUTE, 255), refused
    assert logged
    assert applied_cluster.person(SERVICE, "hostname").stdout.strip() == SERVICE


@pytest.mark.fault
def test_ssh_to_a_compute_host_with_a_job(people: People, of_bob: str) -> None:
    """Attack 11: bob can log in only on the host of his job, ada on none; his processes end with the job."""
    inside = people.run("bob", "node3", "setsid -f sleep 36011 < /dev/null > /dev/null 2>&1; hostname")
    others = [people.run("bob", "node2", "hostname"), people.run("ada", "node3", "hostname")]
    people.lab.sh(SERVICE, f"scancel {of_bob}")

    assert inside.stdout.strip() == "node3", inside.stderr
    assert [done.returncode for done in others] == [255, 255]
    assert wait_for(lambda: not pids(people.lab, "node3", slept("36011")), timeout_s=60, every_s=1)


@pytest.mark.fault
def test_jobs_of_others_are_hidden(people: People, of_bob: str) -> None:
    """Attack 11: queue, accounting and controller show bob's job only to bob."""
    fields = "jobid,jobname,submitline%200"
    look = f"squeue --noheader --format=%A:%j:%k; scontrol show job; sacct --allusers --noheader --format={fields}; sacct -j {of_bob}; true"
    mine = people.run("ada", SERVICE, look).stdout
    his = people.allowed("bob", SERVICE, look)

    assert TOKEN not in mine
    assert not re.search(rf"(?m)^\s*{of_bob}\b|JobId={of_bob}\b", mine), mine
    assert TOKEN in his


@pytest.mark.fault
def test_account_has_rights_only_for_its_own_jobs(people: People, of_bob: str) -> None:
    """Attempts that failed: changes of nodes, partitions, accounts, reservations, priorities and other jobs."""
    people.refused(
        "ada",
        SERVICE,
        f"scontrol update jobid={of_bob} TimeLimit=1",
        f"scontrol hold {of_bob}",
        f"scontrol requeue {of_bob}",
        "scontrol update nodename=node2 state=drain reason=x",
        "scontrol update partitionname=low state=down",
        "scontrol create reservation starttime=now duration=60 users=ada nodes=ALL",
        "scontrol reconfigure",
        "scontrol shutdown",
        "scontrol setdebug debug5",
        "sacctmgr --immediate modify user ada set adminlevel=admin",
        "sacctmgr --immediate add account mine",
        "sacctmgr --immediate modify qos high set priority=1",
        "sbatch --uid=bob --wrap=id",
        "sbatch --uid=0 --wrap=id",
        "cat /etc/munge/munge.key",
        "cat /etc/slurm/slurmdbd.conf",
        "sudo -n true",
    )

    people.run("ada", SERVICE, f"scancel {of_bob}; scancel --signal=KILL {of_bob}; scancel --user=bob")

    assert state(people, of_bob) == "RUNNING"
    assert people.lab.sh(SERVICE, "sinfo --noheader --nodes=node2 --format=%T").split()[0] in ("idle", "mixed", "allocated")


@pytest.mark.fault
def test_tmp_and_shared_memory_are_private(people: People) -> None:
    """Attack 13: files of a job in /tmp and /dev/shm are neither visible to the next job nor kept."""
    files = "/dev/shm/of-ada /tmp/of-ada"  # noqa: S108 - the folders that are meant
    write = f"head -c 1M /dev/zero > /dev/shm/of-ada; echo token > /tmp/of-ada; chmod 644 {files}; ls {files}"
    first = submit(people, "ada", write, "--nodelist=node3")
    wait_until(people, first, "COMPLETED")
    second = submit(people, "bob", f"ls {files} 2> /dev/null; echo end", "--nodelist=node3")
    wait_until(people, second, "COMPLETED")
    left = people.lab.execute("node3", "ls", *files.split()).stdout

    assert people.lab.sh(SERVICE, f"cat /jfs/home/ada/{first}.out").split() == files.split()
    assert people.lab.sh(SERVICE, f"cat /jfs/home/bob/{second}.out") == "end"
    assert left == ""


@pytest.mark.fault
def test_account_has_a_job_limit(people: People) -> None:
    """Attack 13: the number of held jobs is limited with a clear error, and another account can submit."""
    held = "sbatch --hold --parsable --output=/dev/null --wrap=true"
    people.allowed("ada", SERVICE, f"{held} --array=0-899", timeout_s=120)
    more = people.run("ada", SERVICE, f"{held} --array=0-199", timeout_s=120)
    job = submit(people, "bob", "true")
    people.lab.sh(SERVICE, "scancel --user=ada", timeout_s=120)
    wait_until(people, job, "COMPLETED")

    assert more.returncode != 0
    assert "limit" in more.stderr.lower(), more.stderr
