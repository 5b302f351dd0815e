"""Run a real Kubernetes API server for tests: etcd, the API server, controllers and the scheduler as processes on loopback.

There is no kubelet: `fake_nodes` and `fake_kubelet` report the state of nodes and pods.
By hand: `python -m tests.kubernetes.api_server up|down FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kubernetes import certificates
from tests.kubernetes.binaries import CannotError, kubernetes_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# Seen: 6 s on two cores that have nothing else to do.
_READY_LIMIT_S = 120
_STOP_LIMIT_S = 15
# Fields that a server of this version knows only behind a gate, and that later ones have as they are.
_GATES = "--feature-gates=TTLAfterFinished=true"


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running API server with all its files in one folder."""

    folder: Path
    programs: Path
    url: str

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "admin.conf"

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """Run kubectl and return its output."""
        argv: list[str | Path] = [self.programs / "kubectl", "--kubeconfig", self.kubeconfig, *arguments]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=120, check=False)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
        return done.stdout


def up(folder: Path, *, outlive_us: bool = False, more: Mapping[str, Sequence[str]] | None = None) -> ApiServer:
    """Start a server in a folder and wait until it answers; return a server that already runs there.

    Args:
        folder: The folder for certificates, data, logs and process IDs.
        outlive_us: Whether it keeps running after this process ends; otherwise the kernel ends it.
        more: Further arguments of the API server and the controllers, by program.
    """
    extra = more or {}
    folder = folder.absolute()
    programs = kubernetes_programs()
    if _running(folder):
        return _recorded(folder, programs)
    folder.mkdir(parents=True, exist_ok=True)
    etcd, etcd_peer, api, controllers, scheduler = free_ports(5)
    server = ApiServer(folder, programs, f"https://127.0.0.1:{api}")
    certificates.write(folder, server.url)
    start = _Starter(folder, outlive_us=outlive_us)
    try:
        start("etcd", *_etcd(programs, folder, etcd, etcd_peer))
        _wait(start, f"http://127.0.0.1:{etcd}/health", folder)
        start("kube-apiserver", *_api_server(programs, folder, api, f"http://127.0.0.1:{etcd}"), *extra.get("kube-apiserver", ()))
        _wait(start, f"{server.url}/readyz", folder)
        start("kube-controller-manager", *_controllers(programs, folder, controllers), *extra.get("kube-controller-manager", ()))
        start("kube-scheduler", *_scheduler(programs, folder, scheduler))
        # The controllers work when the first namespace has its account, without which no pod is admitted.
        _wait(start, f"{server.url}/api/v1/namespaces/default/serviceaccounts/default", folder)
        _wait(start, f"https://127.0.0.1:{scheduler}/healthz", folder)
    except BaseException:
        down(folder)
        raise
    (folder / "server.json").write_text(json.dumps({"url": server.url}))
    return server


def restart_scheduler(server: ApiServer, *, score_percent: int) -> None:
    """Restart the scheduler with another percentage of nodes to score; it ends with this process."""
    for process in _running(server.folder):
        if Path(f"/proc/{process}/cmdline").read_bytes().partition(b"\0")[0].endswith(b"/kube-scheduler"):
            os.kill(process, signal.SIGTERM)
            if not _until(lambda process=process: not _began(process), lambda: False):  # type: ignore[misc]
                raise CannotError(f"the scheduler {process} did not end within {_READY_LIMIT_S} s")
            _reap([process])
    start = _Starter(server.folder, outlive_us=False)
    port, plain_port = free_ports(2)
    config = _scheduler_config(server.folder, score_percent, plain_port)
    start("kube-scheduler", *_scheduler(server.programs, server.folder, port), f"--config={config}")
    _wait(start, f"https://127.0.0.1:{port}/healthz", server.folder)


def down(folder: Path) -> None:
    """Stop the server of a folder by its recorded processes."""
    running = _running(folder.absolute())
    for process in reversed(running):
        os.kill(process, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_LIMIT_S
    while (left := _running(folder.absolute())) and time.monotonic() < deadline:
        _reap(left)
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    _reap(left)
    (folder / "processes.json").unlink(missing_ok=True)


def free_ports(count: int) -> list[int]:
    """Return distinct free ports on loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(taken.getsockname()[1]) for taken in sockets]
    for taken in sockets:
        taken.close()
    return ports


class _Starter:
    """Starts the server's processes and records their IDs and start times, because IDs are reused."""

    def __init__(self, folder: Path, *, outlive_us: bool) -> None:
        self._folder = folder
        self._prefix = () if outlive_us else ("setpriv", "--pdeathsig", "TERM")
        self._started = {process: _began(process) for process in _running(folder)}

    def __call__(self, name: str, *argv: str | Path) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([*self._prefix, *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        # Who ends it is `down`, by its number: an object that still thinks it runs would complain when it is forgotten.
        process.returncode = 0
        self._started[process.pid] = _began(process.pid)
        (self._folder / "processes.json").write_text(json.dumps(self._started))

    def failed(self) -> bool:
        return len(_running(self._folder)) < len(self._started)


def _began(process: int) -> str:
    """Return the start time of a process in clock ticks since boot, or an empty string without a process."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]


def _running(folder: Path) -> list[int]:
    try:
        noted = json.loads((folder / "processes.json").read_text())
    except OSError:
        return []
    return [int(process) for process, began in noted.items() if began and _began(int(process)) == began]


def _reap(processes: list[int]) -> None:
    for process in processes:
        try:
            os.waitpid(process, os.WNOHANG)
        except ChildProcessError:
            # Another process started it.
            continue


def _recorded(folder: Path, programs: Path) -> ApiServer:
    return ApiServer(folder, programs, json.loads((folder / "server.json").read_text())["url"])


def _wait(start: _Starter, url: str, folder: Path) -> None:
    """Wait until a URL answers, and fail if one of the processes ends."""
    trust = ssl.create_default_context(cafile=folder / "pki/ca.crt")
    trust.load_cert_chain(folder / "pki/admin.crt", folder / "pki/admin.key")
    if url.endswith("/healthz"):
        # The scheduler signs its own.
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust))
    if not _until(lambda: _answers(opener, url), start.failed):
        logs = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-600:]}" for log in sorted(folder.glob("*.log")))
        raise CannotError(f"{url} did not answer within {_READY_LIMIT_S} s, or a process ended:\n{logs}")


def _until(is_so: Callable[[], bool], is_over: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _READY_LIMIT_S
    while time.monotonic() < deadline and not is_over():
        if is_so():
            return True
        time.sleep(0.1)
    return False


def _answers(opener: urllib.request.OpenerDirector, url: str) -> bool:
    try:
        with opener.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _etcd(programs: Path, folder: Path, port: int, peer_port: int) -> list[str | Path]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        programs / "etcd",
        f"--data-dir={folder}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        # Thrown away afterwards: no reason to wait for the disk.
        "--unsafe-no-fsync",
    ]


def _api_server(programs: Path, folder: Path, port: int, etcd: str) -> list[str | Path]:
    pki = folder / "pki"
    return [
        programs / "kube-apiserver",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        # What it calls `kubernetes` inside would be refused on loopback; nobody reads it here.
        "--endpoint-reconciler-type=none",
        f"--secure-port={port}",
        f"--etcd-servers={etcd}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/accounts.pub",
        f"--service-account-signing-key-file={pki}/accounts.key",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        _GATES,
    ]


def _controllers(programs: Path, folder: Path, port: int) -> list[str | Path]:
    pki = folder / "pki"
    return [
        programs / "kube-controller-manager",
        *_client_of_the_server(folder, "controllers", port),
        f"--service-account-private-key-file={pki}/accounts.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials=true",
        # It sleeps for 10 s before it begins, and no pod has an address here.
        "--controllers=*,-nodeipam,bootstrapsigner,tokencleaner",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        # Nodes without a kubelet would be NotReady after 40 s. The controller itself must stay: it takes off the taint that every node
        # is admitted with.
        "--node-monitor-grace-period=87600h",
        "--node-startup-grace-period=87600h",
        _GATES,
    ]


def _scheduler(programs: Path, folder: Path, port: int) -> list[str | Path]:
    return [programs / "kube-scheduler", *_client_of_the_server(folder, "scheduler", port), "--kube-api-qps=200", "--kube-api-burst=400"]


def _scheduler_config(folder: Path, score_percent: int, plain_port: int) -> Path:
    """Write the scheduler's configuration, because these settings have no arguments."""
    file = folder / "scheduler.json"
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(folder / "scheduler.conf"), "qps": 200, "burst": 400},
        "leaderElection": {"leaderElect": False},
        # A configuration cannot say that there is to be none, as --port=0 does.
        "healthzBindAddress": f"127.0.0.1:{plain_port}",
        "metricsBindAddress": f"127.0.0.1:{plain_port}",
        "percentageOfNodesToScore": score_percent,
    }
    file.write_text(json.dumps(config))
    return file


def _client_of_the_server(folder: Path, name: str, port: int) -> list[str]:
    config = folder / f"{name}.conf"
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--port=0",
        "--leader-elect=false",
    ]


def main() -> int:
    """Start or stop a server by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=["up", "down"])
    parser.add_argument("folder", type=Path)
    wanted = parser.parse_args()
    if wanted.verb == "down":
        down(wanted.folder)
        return 0
    began = time.monotonic()
    try:
        server = up(wanted.folder, outlive_us=True)
    except CannotError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stderr.write(f"up in {time.monotonic() - began:.1f} s\n")
    sys.stdout.write(f"export KUBECONFIG={server.kubeconfig} PATH={server.programs}:$PATH\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
