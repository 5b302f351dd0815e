"""No generated secret shows in anything that a run leaves behind or does, on the hosts and on the controller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.lab_rig import ROOT, engine_argv, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1800)]

SEARCH = Path(__file__).with_name("secret_search.py")
HOSTS = ("node1", "node2", "node3")
# Where a secret has to lie on a host; each is readable by root or its service alone.
KEPT_IN = (
    *("/etc/redis/password.conf", "/etc/redis/client.env", "/etc/juicefs/secrets.env", "/etc/juicefs/meta-password"),
    *("/etc/munge/munge.key", "/etc/slurm/slurmdbd.conf", "/etc/envoy/dynamic/listeners.json"),
    *(f"/etc/prometheus/primus/secrets/{name}" for name in ("node", "prometheus", "alertmanager")),
)
# What cannot hold files of this run, or is another host's.
LEFT_OUT = ("/proc", "/sys", "/dev", "/jfs", "/usr/share", "/var/cache/juicefs")
# JuiceFS and the client of Redis take their password from their environment; they run as root, so nobody else can read it.
HOLDERS = ("juicefs", "redis-cli")


def search_argv(lab: RunningLab, node: str | None) -> list[str]:
    """Return how to start the search in a node as root, or on this machine (None)."""
    start = "import sys; exec(compile(sys.stdin.read(int(sys.stdin.readline())), 'secret_search.py', 'exec'))"
    prefix = [*engine_argv(), "exec", "-i", lab.container(node)] if node else []
    return [*prefix, "python3" if node else sys.executable, "-c", start]


def search_input(values: dict[str, str], **options: Any) -> str:
    """Return what the search reads: itself, and what to look for."""
    script = SEARCH.read_text()
    return f"{len(script)}\n{script}{json.dumps({'values': values, **options})}\n"


def secrets_of(lab: RunningLab) -> dict[str, str]:
    """Return every secret that the first apply generated."""
    return {path.name: path.read_text().split()[0] for path in (lab.state_dir / "secrets").iterdir() if not path.name.startswith(".")}


def search(lab: RunningLab, node: str | None, values: dict[str, str], **options: Any) -> dict[str, Any]:
    """Search once and return what was found."""
    done = subprocess.run(
        search_argv(lab, node), input=search_input(values, **options), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def watched(lab: RunningLab, values: dict[str, str], stop: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """Look at the processes of every host and of this machine until the block is left; the results are there then."""
    places: tuple[str | None, ...] = (*HOSTS, None)
    started: list[tuple[str | None, subprocess.Popen[str]]] = []
    found: dict[str, dict[str, Any]] = {}
    for node in places:
        process = subprocess.Popen(search_argv(lab, node), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdin
        process.stdin.write(search_input(values, mode="watch", stop="/run/primus-watch-stop" if node else str(stop), holders=list(HOLDERS)))
        process.stdin.flush()
        started.append((node, process))
    try:
        yield found
    finally:
        stop.touch()
        for node, process in started:
            if node:
                lab.execute(node, "touch", "/run/primus-watch-stop")
            out, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            found[node or "controller"] = json.loads(out)
            if node:
                lab.execute(node, "rm", "-f", "/run/primus-watch-stop")


def run_plain(lab: RunningLab, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the whole site with plain Ansible, as talkative as it can be."""
    argv = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(lab.hosts_file), "playbooks/site.yml", *words]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_HOST_KEY_CHECKING": "True"}
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1500, check=False)


def forget_secret_files(lab: RunningLab) -> None:
    """Take away every file that holds a secret, so that the next run writes each anew."""
    for node in HOSTS:
        lab.sh(node, f"rm -f {' '.join(KEPT_IN)}")


@pytest.mark.fault
def test_no_secret_shows_while_and_after_it_is_brought_out(applied_cluster: RunningLab, tmp_path: Path) -> None:
    """Every secret is written anew under `-vvv --diff` and by apply: no command line, environment, output, log or other file shows one."""
    lab = applied_cluster
    values = secrets_of(lab)
    outputs: list[subprocess.CompletedProcess[str]] = []
    with watched(lab, values, tmp_path / "stop") as seen:
        forget_secret_files(lab)
        outputs.append(run_plain(lab, "-vvv", "--diff"))
        forget_secret_files(lab)
        outputs.append(run_cli("diff", str(lab.hosts_file), timeout_s=900))
        outputs.append(run_cli("-vv", "apply", str(lab.hosts_file), "--yes", timeout_s=1500))
    outputs.append(run_cli("verify", str(lab.hosts_file), "--json", timeout_s=900))
    outputs.append(run_cli("report", str(lab.hosts_file), "--all"))
    on_hosts = {node: files_of_host(lab, node, values) for node in HOSTS}
    here = search_controller(lab, values)

    assert [done.returncode for done in outputs] == [0] * len(outputs), [done.stderr[-2000:] for done in outputs]
    assert {place: result["found"] for place, result in seen.items()} == {place: [] for place in seen}
    assert all(result["looks"] > 20 for result in seen.values()), seen
    assert [name for done in outputs for name, value in values.items() if value in done.stdout + done.stderr] == []
    assert {node: result["found"] for node, result in on_hosts.items()} == {node: [] for node in HOSTS}
    assert here == []


def test_a_secret_lies_in_its_own_files_only(applied_cluster: RunningLab) -> None:
    """After apply, no other file, no journal of a host, and nothing of the runs on the controller holds a generated secret."""
    values = secrets_of(applied_cluster)
    own = search(applied_cluster, "node1", values, mode="files", roots=["/etc"], since="", left_out=[], journal=False)

    assert len(values) >= 4
    assert {line.split(":")[0] for line in own["found"]} == set(KEPT_IN), "the search finds what is there"
    assert {node: files_of_host(applied_cluster, node, values)["found"] for node in HOSTS} == {node: [] for node in HOSTS}
    assert search_controller(applied_cluster, values) == []


def files_of_host(lab: RunningLab, node: str, values: dict[str, str]) -> dict[str, Any]:
    """Search the journal and every file of a host that changed since it was made, but for those that have to hold a secret."""
    since = "/etc/ssh/ssh_host_ed25519_key"
    return search(lab, node, values, mode="files", roots=["/"], since=since, left_out=[*LEFT_OUT, *KEPT_IN], journal=True)


def search_controller(lab: RunningLab, values: dict[str, str]) -> list[str]:
    """Search everything that runs leave on this machine: state, reports, artifacts, temporary folders, caches."""
    cache = Path.home() / ".cache/primus-bootstrap"
    temporary = [path for kind in ("ansible*", "primus*", "tmp*") for path in Path(tempfile.gettempdir()).glob(kind)]
    roots = [str(path) for path in (lab.folder, Path.home() / ".ansible", cache, *temporary)]
    left_out = [str(lab.state_dir / "secrets"), str(cache / "images")]
    found: list[str] = search(lab, None, values, mode="files", roots=roots, since="", left_out=left_out, journal=False)["found"]
    return found
