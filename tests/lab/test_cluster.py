"""Test the applied cluster of the lab as its users see it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_rig import ROOT, run_cli

if TYPE_CHECKING:
    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(2700)]

HOSTS = ("node1", "node2", "node3")
COMPUTE = HOSTS[1:]
# Every role of the lab that proves its effect, and where.
PROVEN = {
    "users_groups": HOSTS,
    "baseline": HOSTS,
    "gpu_env": COMPUTE,
    "node_health": COMPUTE,
    "redis": HOSTS[:1],
    "juicefs": HOSTS,
    "munge": HOSTS,
    "slurm": HOSTS,
    "slurm_accounting": HOSTS[:1],
    "host_certificate": HOSTS,
    "node_exporter": HOSTS,
    "primus_exporter": HOSTS,
    "prometheus": HOSTS[:1],
    "alertmanager": HOSTS[:1],
    "envoy": HOSTS[:1],
    "oci_registry": HOSTS[:1],
    "registry_trust": COMPUTE,
}


def test_verify_passes_for_every_service(applied_cluster: RunningLab) -> None:
    """No check fails, is unknown or is missing."""
    found = applied_cluster.verify()
    places = {(row["service"], row["host"]): row["verdict"] for row in found["services"]}

    wrong = [row for row in found["services"] if row["verdict"] in ("fail", "unknown")]
    assert (found["exit_code"], wrong) == (0, [])
    passed = {place for place, verdict in places.items() if verdict == "pass"}
    missing = {(role, host) for role in PROVEN for host in PROVEN[role]} - passed
    assert missing == set(), f"no check of these roles passed on these hosts of PROVEN in {__file__}"


def test_second_apply_changes_nothing(applied_cluster: RunningLab) -> None:
    """The exit code is 0, no task changes a host, and no check is unknown."""
    done = applied_cluster.apply()
    report = applied_cluster.last_report()

    assert done.returncode == 0, done.stdout + done.stderr
    assert {host["host"]: host["changed"] for host in report["hosts"]} == dict.fromkeys(HOSTS, 0), done.stdout
    assert [record for host in report["hosts"] for record in host["verdicts"] if record["verdict"] in ("fail", "unknown")] == []


@pytest.mark.fault
def test_plain_ansible_changes_nothing(applied_cluster: RunningLab) -> None:
    """`ansible-playbook -i hosts.yaml playbooks/site.yml` changes nothing on the applied cluster."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(applied_cluster.hosts_file), "playbooks/site.yml"]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOST_KEY_CHECKING": "True"}
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"changed=0 .* failed=0", done.stdout)) == len(HOSTS), done.stdout[-4000:]


def test_the_job_of_the_readme_runs_as_printed(applied_cluster: RunningLab) -> None:
    """`workload submit … --follow` ends with the job done, on hosts with the torch of `make lab`."""
    (line,) = re.findall(r"^\$ primus-bootstrap (workload submit .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    done = run_cli(*line.replace("inventory/lab", str(applied_cluster.hosts_file)).split(), timeout_s=900)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "every node ended with exit code 0" in done.stdout, done.stdout


def test_user_has_the_same_files_on_every_host(applied_cluster: RunningLab) -> None:
    """A file under /jfs/home/ada on the login host is readable in jobs, with the right owner."""
    made = applied_cluster.person("node1", "echo from-node1 > /jfs/home/ada/file && hostname")
    look = 'echo "$(hostname -s) $(cat /jfs/home/ada/file) $(stat -c %U /jfs/home/ada/file) $(id -un)"'
    here = applied_cluster.person("node1", look)
    jobs = applied_cluster.person("node1", f"srun -N2 --ntasks-per-node=1 -t 2 sh -c '{look}'", timeout_s=120)

    assert made.returncode == 0, made.stderr
    assert jobs.returncode == 0, jobs.stderr
    assert sorted((here.stdout + jobs.stdout).splitlines()) == [f"{node} from-node1 ada ada" for node in HOSTS]


def test_user_runs_a_job_on_two_hosts(applied_cluster: RunningLab) -> None:
    """`srun` starts one task per host, each with eight GPUs and the shared files."""
    words = 'echo "$(hostname -s) $(echo $ROCR_VISIBLE_DEVICES | tr , "\\n" | wc -l) $(id -un) $(test -d /jfs/home/ada && echo files)"'
    done = applied_cluster.person("node1", f"srun -N2 --ntasks-per-node=1 --gpus-per-node=8 -t 2 sh -c '{words}'", timeout_s=120)
    lines = sorted(done.stdout.split("\n")[:-1])

    assert done.returncode == 0, done.stderr
    assert len({line.split()[0] for line in lines} & set(COMPUTE)) == 2, done.stdout
    assert [line.split()[1:] for line in lines] == [["8", "ada", "files"]] * 2


def test_only_root_reads_secrets(applied_cluster: RunningLab) -> None:
    """A user cannot read a secret; Redis requires its password and TLS."""
    address = applied_cluster.address("node1")
    trust = "import socket, ssl; context = ssl.create_default_context(cafile='/etc/juicefs/redis-ca.crt')"
    ask = f"{trust}; tls = context.wrap_socket(socket.create_connection(('{address}', 6380), 10), server_hostname='{address}')"
    answer = applied_cluster.execute("node2", "python3", "-c", f"{ask}; tls.sendall(b'PING\\r\\n'); print(tls.recv(99).decode())").stdout
    plain = applied_cluster.execute("node2", "bash", "-c", f"timeout 5 bash -c 'exec 3<>/dev/tcp/{address}/6379'")
    files = "/etc/redis/password.conf /etc/redis/client.env /etc/juicefs/secrets.env /etc/juicefs/meta-password /etc/munge/munge.key"
    files += " /etc/slurm/slurmdbd.conf"
    read = applied_cluster.person("node1", f"for file in {files}; do cat $file > /dev/null 2>&1 && echo $file; done; true")
    there = applied_cluster.sh("node1", f"ls {files}").split()

    assert answer.startswith("-NOAUTH")
    assert plain.returncode != 0
    assert (read.returncode, read.stdout) == (0, "")
    assert set(there) == set(files.split())
