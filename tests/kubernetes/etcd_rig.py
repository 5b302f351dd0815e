"""Run real etcd members as processes on loopback, and the playbooks of the role against them.

A fake `systemctl` starts and stops the processes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content
from tests.unit.role_module import load_file
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

authority: Any = load_file(content.plugins_dir() / "action/host_certificate.py", "etcd_rig_authority")

SYSTEMCTL = """#!{python}
import os, signal, subprocess, sys, time
from contextlib import suppress
from pathlib import Path
unit = [word for word in sys.argv[2:] if not word.startswith("-")][0]
home = Path({root!r}) / unit.removesuffix(".service").removeprefix("etcd-")
note = home / "pid"
def gone(pid):
    with suppress(OSError):
        return Path(f"/proc/{{pid}}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    return True
pid = int(note.read_text()) if note.exists() else 0
if sys.argv[1] == "stop" and pid:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    while not gone(pid):
        time.sleep(0.05)
    note.unlink()
if sys.argv[1] == "start" and (not pid or gone(pid)):
    settings = dict(line.split("=", 1) for line in (home / "etcd.env").read_text().splitlines() if line.startswith("ETCD_"))
    with (home / "log").open("ab") as log:
        streams = {{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}}
        made = subprocess.Popen(["etcd"], env={{**os.environ, **settings}}, start_new_session=True, **streams)
    note.write_text(str(made.pid))
"""


def free_ports(count: int) -> list[int]:
    """Return free ports on loopback."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@dataclass
class Etcd:
    """An etcd cluster in a folder: member `m1` is host `m1` of its hosts.yaml."""

    root: Path
    count: int
    tls: bool = False
    ports: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Write the members' configuration, hosts.yaml, and the systemctl."""
        self.ports = free_ports(2 * self.count)
        scheme = "https" if self.tls else "http"
        peers = [f"m{n}={scheme}://127.0.0.1:{self.ports[2 * n - 1]}" for n in self.numbers]
        for n in self.numbers:
            home = self.home(n)
            (home / "pki").mkdir(parents=True)
            (home / "pki/ca.crt").write_text("the authority of demo\n", encoding="ascii")
            settings = {
                "ETCD_NAME": f"m{n}",
                "ETCD_DATA_DIR": home / "data",
                "ETCD_LISTEN_CLIENT_URLS": self.url(n),
                "ETCD_ADVERTISE_CLIENT_URLS": self.url(n),
                "ETCD_LISTEN_PEER_URLS": peers[n - 1].split("=", 1)[1],
                "ETCD_INITIAL_ADVERTISE_PEER_URLS": peers[n - 1].split("=", 1)[1],
                "ETCD_INITIAL_CLUSTER": ",".join(peers),
                "ETCD_INITIAL_CLUSTER_TOKEN": self.root.name,
            }
            settings |= self._secure(n) if self.tls else {}
            (home / "etcd.env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        (self.root / "bin").mkdir()
        self.program("systemctl", SYSTEMCTL.format(python=sys.executable, root=str(self.root)))
        self.write_hosts({})

    def _secure(self, n: int) -> dict[str, Any]:
        """Sign a certificate, and require client and peer certificates, like Kubespray."""
        ca = self.root / "ca"
        authority.ensure_certificate(ca, "demo", authority.CertificateRequest(f"m{n}", ("127.0.0.1",), 30, 1), check=False)
        files = {
            "TRUSTED_CA_FILE": ca / "ca.crt",
            "CERT_FILE": ca / f"hosts/m{n}.crt",
            "KEY_FILE": ca / f"hosts/m{n}.key",
            "CLIENT_CERT_AUTH": "true",
        }
        return {f"ETCD_{kind}{name}": value for kind in ("", "PEER_") for name, value in files.items()}

    @property
    def numbers(self) -> range:
        """Return the numbers of the members."""
        return range(1, self.count + 1)

    def home(self, n: int) -> Path:
        """Return the folder of a member."""
        return self.root / f"m{n}"

    def url(self, n: int) -> str:
        """Return the client URL of a member."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.ports[2 * n - 2]}"

    def program(self, name: str, text: str) -> Path:
        """Write a program that comes first on the PATH."""
        path = self.root / "bin" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return path

    def write_hosts(self, more: Mapping[str, Any], *, without: Sequence[int] = (), lost: Sequence[int] = ()) -> None:
        """Write hosts.yaml with further variables; a lost host does not answer."""
        hosts = {f"m{n}": self._variables(n) for n in self.numbers if n not in without}
        for n in lost:
            hosts[f"m{n}"] |= {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
        common = {
            "cluster_name": "demo",
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
        }
        group = {"hosts": dict.fromkeys(hosts)}
        tree = {"all": {"vars": {**common, **more}, "hosts": hosts, "children": {"etcd": group, "kube_control_plane": group}}}
        (self.root / "hosts.yaml").write_text(json.dumps(tree, indent=1), encoding="utf-8")

    def _variables(self, n: int) -> dict[str, Any]:
        home = self.home(n)
        return {
            "kube_backup_dir": str(home / "backups"),
            "kube_backup_program_dir": str(home / "program"),
            "kube_backup_env_file": str(home / "etcd.env"),
            "kube_backup_manifest_dir": str(home / "manifests"),
            "kube_backup_unit": f"etcd-m{n}",
            "kube_backup_files": [str(home / "pki")],
            "kube_backup_identity": [str(home / "pki/ca.crt")],
            "kube_backup_wait_s": 40,
        }

    def systemctl(self, verb: str, n: int) -> None:
        """Start or stop a member."""
        subprocess.run([str(self.root / "bin/systemctl"), verb, f"etcd-m{n}"], check=True, timeout=60)

    def start(self) -> None:
        """Start all members and wait until each answers."""
        for n in self.numbers:
            self.systemctl("start", n)
        for n in self.numbers:
            self.wait(n)

    def wait(self, n: int) -> None:
        """Wait until a member answers and has a leader."""
        log = self.home(n) / "log"
        until(lambda: not self.ctl(n, "endpoint", "health", check=False).returncode, lambda: log.read_text(encoding="utf-8")[-2000:])

    def ctl(self, n: int, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run etcdctl for a member."""
        ca = self.root / "ca"
        secure = ["--cacert", ca / "ca.crt", "--cert", ca / f"hosts/m{n}.crt", "--key", ca / f"hosts/m{n}.key"] if self.tls else []
        argv = ["etcdctl", "--endpoints", self.url(n), *map(str, secure), *words]
        return subprocess.run(argv, env={**os.environ, "ETCDCTL_API": "3"}, capture_output=True, text=True, timeout=60, check=check)

    def put(self, key: str, value: str) -> None:
        """Write a key."""
        self.ctl(1, "put", key, value)

    def get(self, n: int, key: str) -> str:
        """Return a key's value from one member, or an empty string."""
        return self.ctl(n, "get", key, "--print-value-only").stdout.strip()

    def argv(self, playbook: str, *words: str) -> list[str]:
        """Return the command that runs a day-2 playbook."""
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        return [program, "-i", str(self.root / "hosts.yaml"), str(content.playbooks_dir() / "day2" / playbook), *words]

    def environment(self) -> dict[str, str]:
        """Return the environment of the playbook."""
        path = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "ANSIBLE_CONFIG": str(content.ansible_cfg()), "ANSIBLE_FORCE_COLOR": "0"}

    def play(self, playbook: str, *words: str) -> tuple[int, str]:
        """Run a day-2 playbook; return its exit code and its output with single spaces."""
        done = subprocess.run(self.argv(playbook, *words), env=self.environment(), capture_output=True, text=True, timeout=400, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def end(self) -> None:
        """Kill all processes."""
        for n in self.numbers:
            with suppress(OSError, ValueError):
                os.kill(int((self.home(n) / "pid").read_text(encoding="ascii")), signal.SIGKILL)
