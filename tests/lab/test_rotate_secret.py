"""Test the rotation of secrets during a job and writes to a file: the new value works and the old one does not."""

from __future__ import annotations

import base64
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import run_cli, wait_for
from tests.lab.secret_rig import VALUES
from tests.lab.slurm_rig import Jobs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(1800)]

# Each line is on the disk of the store before the next one is begun; an error of the file system ends the writer.
WRITER = """
import os, time
with open("/jfs/home/ada/rotated", "w") as file:
    for number in range(100000):
        file.write(f"{number}\\n")
        file.flush()
        os.fsync(file.fileno())
        time.sleep(0.05)
"""


@pytest.fixture
def busy(applied_cluster: RunningLab) -> Iterator[RunningLab]:
    """Write a file on node2 as ada during the test."""
    script = WRITER.replace('"', '\\"')
    applied_cluster.sh("node2", f'systemd-run --quiet --unit=writer --uid=ada python3 -c "{script}"')
    try:
        yield applied_cluster
    finally:
        applied_cluster.execute("node2", "systemctl", "stop", "writer")
        applied_cluster.execute("node2", "systemctl", "reset-failed", "writer")


def written(lab: RunningLab) -> int:
    """Return the number of lines in the file, and check on another host that none is missing."""
    lines = lab.sh("node3", "cat /jfs/home/ada/rotated").split("\n")
    assert lines == [str(number) for number in range(len(lines))]
    return len(lines)


@dataclass(frozen=True)
class Work:
    """The activity during a rotation: a job on both hosts, short jobs in sequence, and a file with so many lines."""

    lab: RunningLab
    long: str
    short: tuple[str, ...]
    lines: int

    def check_work(self) -> None:
        """Wait until every job has completed on both hosts, and check that the file is complete."""
        jobs = (self.long, *self.short)
        # The accounts say it, for the controller forgets jobs after five minutes.
        assert wait_for(lambda: recorded(self.lab, *jobs) == ["COMPLETED"] * 9, timeout_s=180, every_s=2), recorded(self.lab, *jobs)
        assert sorted(Jobs(self.lab).output(self.long)) == ["node2", "node3"]
        assert self.lab.sh("node2", "systemctl is-active writer") == "active"
        assert written(self.lab) > self.lines


def begin_work(lab: RunningLab) -> Work:
    """Submit the jobs, and return when the long one runs."""
    jobs = Jobs(lab)
    long = jobs.submit("srun sh -c 'for second in $(seq 60); do sleep 1; done; hostname -s'", "-N2", "--ntasks-per-node=1", "--mem=100")
    short = tuple(jobs.submit("sleep 2; echo done", "--mem=100") for _ in range(8))
    jobs.wait_until(long, "RUNNING")
    return Work(lab, long, short, written(lab))


def status_of(url: str, authority: str, headers: dict[str, str]) -> int:
    """Return the HTTP status for a client with the CA certificate (PEM)."""
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - of the lab
    try:
        with urllib.request.urlopen(request, timeout=30, context=ssl.create_default_context(cadata=authority)) as answer:  # noqa: S310 - the same
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def ask_registry(lab: RunningLab, password: str) -> int:
    """Log in to the registry with the cluster's account."""
    authority = lab.sh("node2", "cat /etc/containers/certs.d/node1:5000/ca.crt")
    login = base64.b64encode(f"cluster:{password}".encode()).decode()
    return status_of(f"https://{lab.address('node1')}:5000/v2/", authority, {"Authorization": f"Basic {login}"})


def ask_gateway(lab: RunningLab, key: str) -> int:
    """Query Prometheus through the gateway with a key."""
    authority = (lab.state_dir / "ca" / "ca.crt").read_text()
    password = (lab.state_dir / "secrets" / "prometheus_password").read_text().split()[0]
    account = base64.b64encode(f"prometheus:{password}".encode()).decode()
    url = f"https://{lab.address('node1')}:8443/prometheus/api/v1/query?query=up"
    return status_of(url, authority, {"x-api-key": key, "Authorization": f"Basic {account}"})


# Who can be asked from here whether a value is in force; Redis has a test of its own.
ASK = {"registry": ask_registry, "gateway": ask_gateway}


@pytest.mark.parametrize("secret", list(VALUES))
def test_secret_is_rotated_during_work(busy: RunningLab, secret: str) -> None:
    """Jobs complete and the file is intact; a second run changes nothing; only the new value works."""
    kept = busy.state_dir / "secrets" / VALUES[secret]
    former = kept.read_text().split()[0]
    work = begin_work(busy)

    kept.unlink()
    done = run_cli("secrets", "rotate", str(busy.hosts_file), secret, "--yes", timeout_s=900)
    again = run_cli("secrets", "rotate", str(busy.hosts_file), secret, "--yes", timeout_s=900)
    value = kept.read_text().split()[0]

    assert (done.returncode, again.returncode) == (0, 0), done.stdout + done.stderr + again.stdout + again.stderr
    assert value != former
    assert not [text for text in (value, former) if text in done.stdout + done.stderr + again.stdout + again.stderr]
    assert "; 0 changes" in again.stdout
    work.check_work()
    if ask := ASK.get(secret):
        # The gateway takes 30 requests a minute, and its verification may have used them up: so slowly, they suffice.
        assert wait_for(lambda: (ask(busy, former), ask(busy, value)) == (401, 200), timeout_s=150, every_s=10)


def recorded(lab: RunningLab, *jobs: str) -> list[str]:
    """Return the accounting records of jobs."""
    return lab.sh("node1", f"sacct --noheader --allocations --parsable2 --jobs={','.join(jobs)} --format=State").split()


def test_old_password_of_redis_is_refused(busy: RunningLab) -> None:
    """Both passwords work during the rotation, one afterwards; no mount restarts."""
    kept = busy.state_dir / "secrets" / "redis_password"
    former = kept.read_text().split()[0]
    ask = "systemctl show --property MainPID --value juicefs"
    before = [busy.sh(node, ask) for node in ("node1", "node2", "node3")]
    kept.unlink()
    done = run_cli("secrets", "rotate", str(busy.hosts_file), "redis", "--yes", timeout_s=900)
    ping = "redis-cli --tls --cacert /etc/redis/tls/ca.crt -p 6380 PING 2>&1 || true"
    answers = [busy.sh("node1", f"REDISCLI_AUTH={one} {ping}") for one in (former, kept.read_text().split()[0])]

    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONGPASS" in answers[0]
    assert answers[1].endswith("PONG")
    assert [busy.sh(node, ask) for node in ("node1", "node2", "node3")] == before


def test_all_certificates_are_replaced(busy: RunningLab) -> None:
    """Hosts, gateway and registry have new certificates of the same CAs; jobs complete and the file is intact."""
    work = begin_work(busy)
    show = f"timeout 10 openssl s_client -connect {busy.address('node1')}:{{}} < /dev/null 2> /dev/null | openssl x509 -noout -fingerprint"
    ports = (9100, 9090, 9093, 8443, 5000)
    before = [busy.sh("node1", show.format(port)) for port in ports]
    done = run_cli("secrets", "rotate", str(busy.hosts_file), "certificates", "--yes", timeout_s=900)
    after = [busy.sh("node1", show.format(port)) for port in ports]

    assert done.returncode == 0, done.stdout + done.stderr
    assert [old == new for old, new in zip(before, after, strict=True)] == [False] * len(ports)
    work.check_work()


def test_unknown_secret_is_refused(applied_cluster: RunningLab) -> None:
    """The verb and the playbook list the secrets."""
    done = run_cli("secrets", "rotate", str(applied_cluster.hosts_file), "reddis", "--yes")

    assert done.returncode == 2
    assert "choose from: certificates, gateway, mariadb, monitoring, munge, object_store, redis, registry" in done.stderr
