"""Secrets change while a job runs and a file is written: nothing is lost, the new value is in force, the former one is refused."""

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
    """Have a file written on node2, as ada, until the test ends."""
    script = WRITER.replace('"', '\\"')
    applied_cluster.sh("node2", f'systemd-run --quiet --unit=writer --uid=ada python3 -c "{script}"')
    try:
        yield applied_cluster
    finally:
        applied_cluster.execute("node2", "systemctl", "stop", "writer")
        applied_cluster.execute("node2", "systemctl", "reset-failed", "writer")


def written(lab: RunningLab) -> int:
    """Return how many lines the file has, and demand that none is missing, as another host sees it."""
    lines = lab.sh("node3", "cat /jfs/home/ada/rotated").split("\n")
    assert lines == [str(number) for number in range(len(lines))]
    return len(lines)


@dataclass(frozen=True)
class Work:
    """What goes on while a secret changes: a job over both hosts, short ones after each other, and a file of so many lines so far."""

    lab: RunningLab
    long: str
    short: tuple[str, ...]
    lines: int

    def demand_all_kept(self) -> None:
        """Wait until every job has completed, on both hosts, and demand that the file went on and lacks nothing."""
        jobs = (self.long, *self.short)
        # The accounts say it, for the controller forgets jobs after five minutes.
        assert wait_for(lambda: recorded(self.lab, *jobs) == ["COMPLETED"] * 9, timeout_s=180, every_s=2), recorded(self.lab, *jobs)
        assert sorted(Jobs(self.lab).output(self.long)) == ["node2", "node3"]
        assert self.lab.sh("node2", "systemctl is-active writer") == "active"
        assert written(self.lab) > self.lines


def begin_work(lab: RunningLab) -> Work:
    """Submit the jobs, and return once the long one runs."""
    jobs = Jobs(lab)
    long = jobs.submit("srun sh -c 'for second in $(seq 60); do sleep 1; done; hostname -s'", "-N2", "--ntasks-per-node=1", "--mem=100")
    short = tuple(jobs.submit("sleep 2; echo done", "--mem=100") for _ in range(8))
    jobs.wait_until(long, "RUNNING")
    return Work(lab, long, short, written(lab))


def status_of(url: str, authority: str, headers: dict[str, str]) -> int:
    """Return the status of an answer, to a client that knows the authority (PEM)."""
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - of the lab
    try:
        with urllib.request.urlopen(request, timeout=30, context=ssl.create_default_context(cadata=authority)) as answer:  # noqa: S310 - the same
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def ask_registry(lab: RunningLab, password: str) -> int:
    """Log in to the registry as the cluster's account does."""
    authority = lab.sh("node2", "cat /etc/containers/certs.d/node1:5000/ca.crt")
    login = base64.b64encode(f"cluster:{password}".encode()).decode()
    return status_of(f"https://{lab.address('node1')}:5000/v2/", authority, {"Authorization": f"Basic {login}"})


def ask_gateway(lab: RunningLab, key: str) -> int:
    """Ask Prometheus through the gateway with a key."""
    authority = (lab.state_dir / "ca" / "ca.crt").read_text()
    password = (lab.state_dir / "secrets" / "prometheus_password").read_text().split()[0]
    account = base64.b64encode(f"prometheus:{password}".encode()).decode()
    url = f"https://{lab.address('node1')}:8443/prometheus/api/v1/query?query=up"
    return status_of(url, authority, {"x-api-key": key, "Authorization": f"Basic {account}"})


# Who can be asked from here whether a value is in force; Redis has a test of its own.
ASK = {"registry": ask_registry, "gateway": ask_gateway}


@pytest.mark.parametrize("secret", list(VALUES))
def test_a_secret_changes_under_a_job_and_a_file(busy: RunningLab, secret: str) -> None:
    """Jobs complete and the file goes on; a second run changes nothing; registry and gateway take the new value and refuse the former."""
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
    work.demand_all_kept()
    if ask := ASK.get(secret):
        # The gateway takes 30 requests a minute, and its verification may have used them up: so slowly, they suffice.
        assert wait_for(lambda: (ask(busy, former), ask(busy, value)) == (401, 200), timeout_s=150, every_s=10)


def recorded(lab: RunningLab, *jobs: str) -> list[str]:
    """Return what the accounts say of jobs."""
    return lab.sh("node1", f"sacct --noheader --allocations --parsable2 --jobs={','.join(jobs)} --format=State").split()


def test_the_former_password_of_redis_is_refused(busy: RunningLab) -> None:
    """Both are taken while the clients change, one is afterwards; no mount was restarted for it."""
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


def test_every_certificate_is_signed_anew(busy: RunningLab) -> None:
    """Hosts, gateway and registry show other certificates than before, of the same authorities; jobs complete and the file goes on."""
    work = begin_work(busy)
    show = "timeout 10 openssl s_client -connect 127.0.0.1:{} < /dev/null 2> /dev/null | openssl x509 -noout -fingerprint"
    ports = (9100, 9090, 9093, 8443, 5000)
    before = [busy.sh("node1", show.format(port)) for port in ports]
    done = run_cli("secrets", "rotate", str(busy.hosts_file), "certificates", "--yes", timeout_s=900)
    after = [busy.sh("node1", show.format(port)) for port in ports]

    assert done.returncode == 0, done.stdout + done.stderr
    assert [old == new for old, new in zip(before, after, strict=True)] == [False] * len(ports)
    work.demand_all_kept()


def test_a_secret_that_there_is_not_is_refused_with_those_that_there_are(applied_cluster: RunningLab) -> None:
    """The verb names them, and so does the playbook."""
    done = run_cli("secrets", "rotate", str(applied_cluster.hosts_file), "reddis", "--yes")

    assert done.returncode == 3
    assert "choose from: certificates, gateway, mariadb, monitoring, munge, redis, registry" in done.stderr
