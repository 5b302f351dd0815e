"""Test the services with two accounts: Redis, passwords, debug pages and metrics."""

from __future__ import annotations

import re
import shlex
import time
from typing import TYPE_CHECKING

import pytest

from tests.lab.security_rig import COMPUTE, HOSTS, SERVICE

if TYPE_CHECKING:
    from tests.lab.lab_rig import RunningLab
    from tests.lab.security_rig import People

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2700)]

METRICS = "/var/lib/primus/training"
# What answers without a password is 200 or text; every service here says 401, 403, or nothing.
NETWORK = {
    "registry": "https://{node1}:5000/v2/_catalog",
    "Prometheus": "https://{node1}:9090/api/v1/query?query=up",
    "Alertmanager": "https://{node1}:9093/api/v2/alerts",
    "node_exporter": "https://{node2}:9100/metrics",
    "gateway": "https://{node1}:8443/prometheus/api/v1/query?query=up",
}
# Ports of the loopback device that hold debug pages, numbers or settings; the last one is of earlier releases.
LOOPBACK = {6060: "juicefs pprof", 6061: "juicefs pprof", 9567: "juicefs metrics", 9901: "Envoy config_dump"}


@pytest.mark.fault(cheap=True)
def test_redis_has_only_tls_and_a_memory_limit(applied_cluster: RunningLab) -> None:
    """Attacks 12 and 13: no plain port is open, mounts use TLS, and a full Redis refuses writes."""
    lab = applied_cluster
    listening = re.findall(r":(6379|6380)\s", lab.sh(SERVICE, "ss -Hltn"))
    ask = "exec 3<>/dev/tcp/{address}/{port}; printf 'PING\\r\\n' >&3; timeout 5 head -c 200 <&3"
    answers = [lab.execute("node2", "bash", "-c", ask.format(address=lab.address(SERVICE), port=port)).stdout for port in set(listening)]
    settings = lab.sh(SERVICE, "cat /etc/redis/redis.conf /etc/redis/plain-port.conf 2> /dev/null; true")
    mounted = {node: lab.sh(node, "systemctl cat juicefs.service") for node in HOSTS}

    assert set(listening) == {"6380"}
    assert not any("PONG" in answer or "NOAUTH" in answer for answer in answers), answers
    assert all("rediss://" in text for text in mounted.values())
    assert re.search(r"(?m)^maxmemory [1-9]\d*", settings)
    assert re.search(r"(?m)^maxmemory-policy noeviction", settings)


@pytest.mark.fault(cheap=True)
@pytest.mark.parametrize("service", sorted(NETWORK))
def test_no_service_answers_without_a_password(applied_cluster: RunningLab, service: str) -> None:
    """Attempts that failed: without or with a wrong password, another host gets no content."""
    lab = applied_cluster
    url = NETWORK[service].format(**{node: lab.address(node) for node in HOSTS})
    curl = "curl --silent --insecure --max-time 20 --output /dev/null --write-out '%{http_code} '"
    codes = lab.sh("node3", f"{curl} '{url}'; {curl} --user cluster:wrong '{url}'; {curl} --header 'x-api-key: wrong' '{url}'").split()

    assert set(codes) <= {"401", "403", "404", "429"}, codes


@pytest.mark.fault(cheap=True)
def test_services_listen_on_one_address(applied_cluster: RunningLab) -> None:
    """Other networks of a host reach none of them: each listens on the address of its host in hosts.yaml."""
    address = applied_cluster.address("node1")
    for port in (9100, 9090, 9093, 5000):
        found = applied_cluster.sh("node1", f"ss -Hltn 'sport = :{port}' | awk '{{print $4}}'").split()
        assert found == [f"{address}:{port}"]


@pytest.mark.fault(cheap=True)
def test_debug_pages_are_closed_for_accounts(applied_cluster: RunningLab) -> None:
    """Attack 13: an account gets no pprof, mount metrics or Envoy settings."""
    for port, what in LOOPBACK.items():
        paths = "debug/pprof/cmdline metrics config_dump stats certs"
        script = f"for path in {paths}; do curl --silent --fail --max-time 10 http://127.0.0.1:{port}/$path | head -c 100; done; true"
        done = applied_cluster.person(SERVICE, script)
        assert done.stdout == "", f"{what} ({port}) answers: {done.stdout}"


@pytest.mark.fault(cheap=True)
def test_account_cannot_write_metrics_of_others(applied_cluster: RunningLab) -> None:
    """Attack 9: root owns the metrics folder, and each account only its own folder."""
    lab = applied_cluster
    for node in COMPUTE:
        assert lab.sh(node, f"stat -c '%U %a' {METRICS}") == "root 755"
        assert lab.sh(node, f"stat -c '%U' {METRICS}/ada") == "ada"


@pytest.mark.fault
def test_forged_metrics_do_not_affect_other_runs(people: People) -> None:
    """Attack 9: 501 files and a forged step of ada do not change bob's metrics."""
    good = 'primus_train_step{{run="{run}",node="node3"}} {step}'
    people.lab.sh(
        "node3",
        f"cd {METRICS}/bob && printf '%s\\n' '{good.format(run='bobs', step=7)}' > bobs.prom && chown bob bobs.prom"
        f" && cd {METRICS}/ada && printf '%s\\n' '{good.format(run='bobs', step=999999)}' > bobs.prom"
        " && for i in $(seq 501); do : > $i.prom; done && ln -s /etc/shadow link.prom && mkfifo pipe.prom && chown -h ada *.prom",
    )
    since = time.time()
    # Twice: the first may join a run of the timer's that began before the files were there.
    for _ in range(2):
        done = people.lab.execute("node3", "systemctl", "start", "primus-exporter.service", timeout_s=120)
    text = people.lab.sh("node3", "cat /var/lib/prometheus/node-exporter/*.prom")
    people.lab.sh("node3", f"rm -f {METRICS}/ada/* {METRICS}/bob/bobs.prom")

    assert done.returncode == 0, done.stderr
    assert "999999" not in "\n".join(line for line in text.splitlines() if 'user="bob"' in line or "user=" not in line)
    assert re.search(r"(?m)^primus_train_step\{.*bobs.*\} 7(\.0)?$", text), text[-3000:]
    assert "root:" not in text
    assert people.is_logged("node3", "of ada were dropped", since)


@pytest.mark.fault
def test_account_finds_no_secret(people: People) -> None:
    """Attempts that failed: bob can read no secret in a file, process or environment on any host."""
    folder = people.lab.state_dir / "secrets"
    values = [text for path in folder.iterdir() if path.is_file() and len(text := path.read_text().split()[0]) >= 20]
    # The patterns lie in a file that the search leaves out: a command line would find itself.
    people.allowed("bob", SERVICE, f"umask 077 && printf '%s\\n' {' '.join(map(shlex.quote, values))} > /jfs/home/bob/patterns")
    places = "/etc /var/lib /var/log /run /tmp /opt /srv /usr/local /home /jfs"
    search = "grep -aF -f /jfs/home/bob/patterns"
    script = (
        f"timeout 200 {search} -rl -D skip --exclude=patterns {places} 2> /dev/null;"
        f" cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2> /dev/null | {search}; true"
    )
    control = people.allowed("bob", SERVICE, "cp /jfs/home/bob/patterns control && grep -lF -f /jfs/home/bob/patterns control; rm control")
    found = {node: people.lab.sh(node, f"runuser -u bob -- sh -c {shlex.quote(script)}", timeout_s=300) for node in HOSTS}
    people.allowed("bob", SERVICE, "rm /jfs/home/bob/patterns")

    assert len(values) >= 8
    assert control == "control"
    assert found == dict.fromkeys(HOSTS, "")
