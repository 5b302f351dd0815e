"""The secrets of a lab: their files, and the search for them everywhere else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.lab.lab_rig import engine_argv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab_rig import RunningLab

SEARCH = Path(__file__).with_name("secret_search.py")
HOSTS = ("node1", "node2", "node3")
# Where a secret has to lie on a host; each is readable by root or its service alone.
KEPT_IN = (
    *("/etc/redis/password.conf", "/etc/redis/client.env", "/etc/juicefs/secrets.env", "/etc/juicefs/meta-password"),
    *("/etc/munge/munge.key", "/etc/slurm/slurmdbd.conf", "/etc/envoy/dynamic/listeners.json"),
    *(f"/etc/prometheus/primus/secrets/{name}" for name in ("node", "prometheus", "alertmanager")),
)
# Where the lab's hosts.yaml takes a value from, by secret.
VALUES = {
    "munge": "munge_key",
    "redis": "redis_password",
    "mariadb": "slurm_accounting_password",
    "registry": "oci_registry_password",
    "gateway": "gateway_ada",
    "monitoring": "prometheus_password",
}
# What cannot hold files of this run, or is another host's.
LEFT_OUT = ("/proc", "/sys", "/dev", "/jfs", "/usr/share", "/var/cache/juicefs")
# Who takes a password from the environment, and the highest number of an account that runs it: root, and for backups the account of Redis,
# one of the system's (to 999), which the password is readable for.
HOLDERS = {"juicefs": 0, "juicefs.service": 0, "redis-cli": 0, "primus-redis-backup.service": 999}


def search_argv(lab: RunningLab, node: str | None) -> list[str]:
    """Return the command of the search in a node as root, or on this machine (None)."""
    start = "import sys; exec(compile(sys.stdin.read(int(sys.stdin.readline())), 'secret_search.py', 'exec'))"
    prefix = [*engine_argv(), "exec", "-i", lab.container(node)] if node else []
    return [*prefix, "python3" if node else sys.executable, "-c", start]


def search_input(values: dict[str, str], **options: Any) -> str:
    """Return the input of the search: the script and the values."""
    script = SEARCH.read_text()
    return f"{len(script)}\n{script}{json.dumps({'values': values, **options})}\n"


def secrets_of(lab: RunningLab) -> dict[str, str]:
    """Return every secret that the first apply generated."""
    return {path.name: path.read_text().split()[0] for path in (lab.state_dir / "secrets").iterdir() if not path.name.startswith(".")}


def search(lab: RunningLab, node: str | None, values: dict[str, str], **options: Any) -> dict[str, Any]:
    """Search once and return the findings."""
    done = subprocess.run(
        search_argv(lab, node), input=search_input(values, **options), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def watched(lab: RunningLab, values: dict[str, str], stop: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """Search the processes of every host and of this machine during the block; the results are complete afterwards."""
    places: tuple[str | None, ...] = (*HOSTS, None)
    started: list[tuple[str | None, subprocess.Popen[str]]] = []
    found: dict[str, dict[str, Any]] = {}
    for node in places:
        process = subprocess.Popen(search_argv(lab, node), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdin
        process.stdin.write(search_input(values, mode="watch", stop="/run/primus-watch-stop" if node else str(stop), holders=HOLDERS))
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


def files_of_host(lab: RunningLab, node: str, values: dict[str, str]) -> dict[str, Any]:
    """Search the journal and every changed file of a host, except for the files of secrets."""
    since = "/etc/ssh/ssh_host_ed25519_key"
    return search(lab, node, values, mode="files", roots=["/"], since=since, left_out=[*LEFT_OUT, *KEPT_IN], journal=True)


def search_controller(lab: RunningLab, values: dict[str, str]) -> list[str]:
    """Search the files of runs on this machine: state, reports, artifacts, temporary folders, caches."""
    cache = Path.home() / ".cache/primus-bootstrap"
    temporary = [path for kind in ("ansible*", "primus*", "tmp*") for path in Path(tempfile.gettempdir()).glob(kind)]
    roots = [str(path) for path in (lab.folder, Path.home() / ".ansible", cache, *temporary)]
    left_out = [str(lab.state_dir / "secrets"), str(cache / "images")]
    found: list[str] = search(lab, None, values, mode="files", roots=roots, since="", left_out=left_out, journal=False)["found"]
    return found
