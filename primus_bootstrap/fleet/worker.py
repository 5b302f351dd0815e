"""The worker process of the fan-out: read one JSON request from stdin, run a command on hosts, write one JSON line per host.

It is a separate process, because gevent must patch modules before any other import and conflicts with Ansible's forks. pyinfra
opens the connections. `run_command` runs the command: pyinfra's own function prompts for sudo passwords on the terminal, decodes
output strictly, and stores all of it.
"""

from __future__ import annotations

# ruff: noqa: E402 (time-outs work only if gevent patches modules first)
from gevent import monkey

monkey.patch_all()

import contextlib
import io
import json
import logging
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import gevent
from gevent.lock import BoundedSemaphore
from gevent.os import make_nonblocking, nb_read
from gevent.pool import Pool
from paramiko import AuthenticationException, BadHostKeyException, PasswordRequiredException, PKey, SSHException
from pyinfra.api import Config, Inventory, State
from pyinfra.api.exceptions import PyinfraError

from primus_bootstrap.fleet.known_hosts import host_key_name, split_known_hosts
from primus_bootstrap.fleet.messages import Answer, Target
from primus_bootstrap.fleet.ssh_config import Route, route_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.fleet.known_hosts import KnownHosts

# The limit of stdout and of stderr of a host; further output is read and dropped.
KEPT_BYTES = 1 << 20
# A handshake takes about 5 ms of one core, so that more in parallel would be slower.
HANDSHAKES = 48
# After this time a handshake waits for the host, so that the next one may start.
HANDSHAKE_LIMIT_S = 1.0
# File descriptors per host: a socket and a spare; for a proxy command a socket pair and pipes. FDS_OWN are those of this process.
FDS_DIRECT, FDS_PROXY, FDS_OWN = 2, 8, 64
# Hosts per pyinfra state, whose set-up time grows with the square of the number of hosts.
HOSTS_PER_STATE = 100


class UnansweredError(Exception):
    """A host did not answer."""

    def __init__(self, cause: str, detail: str) -> None:
        """Store the cause (see `messages.Cause`) and the detail."""
        super().__init__(detail)
        self.cause = cause


class HandshakeLimiter:
    """Limits the number of handshakes in parallel. A slow handshake releases its slot, so that it does not delay other hosts."""

    def __init__(self, size: int) -> None:
        """Create a limiter with so many slots."""
        self._free = BoundedSemaphore(size)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Hold a slot until the block ends or the time limit expires."""
        self._free.acquire()
        held = [True]

        def release() -> None:
            if held:
                held.clear()
                self._free.release()

        timer = gevent.spawn_later(HANDSHAKE_LIMIT_S, release)
        try:
            yield
        finally:
            timer.kill(block=False)
            release()


class Transport:
    """A connected socket to a host, and the proxy command at its other end, if there is one."""

    def __init__(self, sock: socket.socket, proxy: subprocess.Popen[bytes] | None = None) -> None:
        """Store the socket and the proxy command."""
        self.socket = sock
        self._proxy = proxy

    @property
    def proxy_error(self) -> str:
        """The last line of the proxy command's stderr."""
        if self._proxy is None or self._proxy.stderr is None:
            return ""
        with gevent.Timeout(0.5, False):  # noqa: FBT003 (it ends the block and raises nothing)
            lines = self._proxy.stderr.read().decode(errors="replace").strip().splitlines()
            return lines[-1].strip() if lines else ""
        return ""

    def close(self) -> None:
        """Close the socket and terminate the proxy command."""
        self.socket.close()
        if self._proxy is not None:
            with contextlib.suppress(ProcessLookupError):
                self._proxy.terminate()


def open_proxy(command: str) -> Transport:
    """Start a proxy command on one end of a socket pair; paramiko's own class loops at the end of a pipe."""
    ours, theirs = socket.socketpair()
    with theirs:
        proxy = subprocess.Popen(["sh", "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE)
    return Transport(ours, proxy)


def open_transport(route: Route, timeout_s: float) -> Transport:
    """Connect to a host, directly or with its proxy command."""
    if route.proxy_command:
        return open_proxy(route.proxy_command)
    where = f"{route.address} port {route.port}"
    try:
        return Transport(socket.create_connection((route.address, route.port), timeout=timeout_s))
    except TimeoutError:
        raise UnansweredError("timeout", f"no answer from {where} within {timeout_s:g} s") from None
    except socket.gaierror as error:
        raise UnansweredError("name", f"{route.address} cannot be resolved: {error.strerror}") from None
    except ConnectionRefusedError:
        raise UnansweredError("refused", f"{where} refuses connections") from None
    except OSError as error:
        raise UnansweredError("unreachable", f"{where}: {error.strerror or error}") from None


def log_in(host: Any, route: Route, transport: Transport) -> None:
    """Log in with pyinfra over a connected transport."""
    try:
        host.connect(show_errors=False, raise_exceptions=True)
    except PyinfraError as error:
        cause, account = error.__context__, f"{route.user or 'this user'} at {route.address}"
        if isinstance(cause, BadHostKeyException):
            key = cause.key.fingerprint
            raise UnansweredError("host_key_changed", f"{route.key_name} has another host key than the pinned one: {key}") from None
        if "No host key" in str(cause):
            raise UnansweredError("host_key_unknown", f"no host key of {route.key_name} is pinned") from None
        if isinstance(cause, PasswordRequiredException):
            raise UnansweredError("key_file", str(error)) from None
        if isinstance(cause, AuthenticationException) or "No authentication methods" in str(cause):
            keys = ", ".join(route.key_files) or "the agent and the default keys"
            raise UnansweredError("auth", f"{account} does not accept {keys}: {cause}") from None
        if isinstance(cause, (SSHException, OSError, EOFError)):
            if route.proxy_command:
                raise UnansweredError("bastion", transport.proxy_error or f"{route.proxy_command}: {cause}") from None
            raise UnansweredError(
                "protocol", f"{route.address} port {route.port}: {cause or 'the connection ended in the handshake'}"
            ) from None
        raise UnansweredError("key_file", str(error)) from None


@cache
def needs_agent(key_file: str) -> bool:
    """Return whether a key file has a passphrase and an agent runs, which then provides the key."""
    if not os.environ.get("SSH_AUTH_SOCK"):
        return False
    try:
        PKey.from_path(key_file)
    except (SSHException, TypeError):  # the exception for a passphrase depends on the format of the file
        return True
    except (OSError, ValueError):
        return False
    return False


def drain(read: Any) -> tuple[bytes, bool]:
    """Read a stream to its end; return its first bytes and whether more were dropped."""
    kept = bytearray()
    more = False
    while data := read(65536):
        room = KEPT_BYTES - len(kept)
        kept += data[:room]
        more = more or len(data) > room
    return bytes(kept), more


def run_command(host: Any, command: str, stdin: str) -> Answer:
    """Run a command over an open connection."""
    try:
        channel = host.connector.client.get_transport().open_session()
        sent = time.time()
        channel.exec_command(command)
        readers = gevent.spawn(drain, channel.recv), gevent.spawn(drain, channel.recv_stderr)
        with contextlib.suppress(OSError):  # the command may end before it has read all input
            channel.sendall(stdin.encode())
        channel.shutdown_write()
        (stdout, more_out), (stderr, more_err) = (reader.get() for reader in readers)
        code = channel.recv_exit_status()
    except (SSHException, OSError, EOFError) as error:
        raise UnansweredError("lost", f"the connection ended while the command ran: {error}") from None
    if code < 0:
        raise UnansweredError("lost", "the connection ended while the command ran, or a signal ended the command")
    text, errors = stdout.decode(errors="replace"), stderr.decode(errors="replace")
    return Answer(host.name, code, text, errors, sent=sent, received=time.time(), truncated=more_out or more_err)


def run_here(name: str, command: str, stdin: str) -> Answer:
    """Run a command on this machine."""
    sent = time.time()
    done = subprocess.run(["sh", "-c", command], input=stdin.encode(), capture_output=True, check=False)
    (stdout, more_out), (stderr, more_err) = (drain(io.BytesIO(data).read) for data in (done.stdout, done.stderr))
    text, errors = stdout.decode(errors="replace"), stderr.decode(errors="replace")
    return Answer(name, done.returncode % 256, text, errors, sent=sent, received=time.time(), truncated=more_out or more_err)


class Session:
    """The state that all connections share: the request, the pinned keys and the handshake limiter."""

    def __init__(self, request: dict[str, Any], pinned: KnownHosts, folder: Path) -> None:
        """Store the shared state."""
        self.request = request
        self.pinned = pinned
        self.folder = folder
        self.handshakes = HandshakeLimiter(HANDSHAKES)

    def connector_data(self, target: Target) -> dict[str, Any]:
        """Return pyinfra's connection data of a host; `prepare` adds the values of the route."""
        return {
            "ssh_config_file": os.devnull,
            "ssh_strict_host_key_checking": "yes",
            "ssh_known_hosts_file": str(self.folder / quote(target.host, safe="")),
            "ssh_paramiko_connect_kwargs": {},
            **({"ssh_password": target.password} if target.password else {}),
        }

    def prepare(self, host: Any, target: Target, route: Route, transport: Transport) -> None:
        """Set the route, and write a known_hosts file for this host."""
        # Over an open socket paramiko uses the host name and port only for the name of the host key.
        port = 22 if route.key_name != route.address else route.port
        lines = self.pinned.lines_for(host_key_name(route.key_name, port))
        Path(host.connector.data["ssh_known_hosts_file"]).write_text(lines, encoding="utf-8")
        timeout_s = self.request["timeout_s"]
        data = host.connector.data
        data.update(ssh_hostname=route.key_name, ssh_port=port, ssh_user=route.user or None)
        if target.key_file and not needs_agent(route.key_files[0]):
            data["ssh_key"] = route.key_files[0]
        data["ssh_paramiko_connect_kwargs"] |= {
            "sock": transport.socket, "banner_timeout": timeout_s, "auth_timeout": timeout_s, "channel_timeout": timeout_s,
            **({"key_filename": list(route.key_files), "look_for_keys": False} if route.key_files and not target.key_file else {}),
            **({"allow_agent": False} if route.identities_only else {}),
        }  # fmt: skip

    def answer(self, host: Any, target: Target) -> Answer:
        """Run the command on one host within `timeout_s`, not counting the wait for a handshake slot."""
        budget_s, began, stage, transport = self.request["timeout_s"], time.monotonic(), "connecting", None
        try:
            with gevent.Timeout(budget_s):
                if target.local:
                    stage = "running the command"
                    return run_here(target.host, self.request["command"], self.request["stdin"].get(target.host, ""))
                route = route_of(target)
                transport = open_transport(route, budget_s)
                self.prepare(host, target, route, transport)
            left_s = budget_s - (time.monotonic() - began)
            stage = "logging in"
            with contextlib.ExitStack() as slot:
                slot.enter_context(self.handshakes.working())
                with gevent.Timeout(left_s):
                    log_in(host, route, transport)
                    slot.close()
                    stage = "running the command"
                    return run_command(host, self.request["command"], self.request["stdin"].get(target.host, ""))
        except gevent.Timeout:
            return Answer(target.host, cause="timeout", detail=f"{stage} took longer than {budget_s:g} s")
        except UnansweredError as error:
            return Answer(target.host, cause=error.cause, detail=str(error))  # type: ignore[arg-type]
        except ValueError as error:
            return Answer(target.host, cause="ssh_arguments", detail=str(error))
        finally:
            if host.connector.client is not None:
                host.connector.client.close()
            if transport is not None:
                transport.close()


def in_flight(targets: list[Target]) -> int:
    """Raise the limit of file descriptors to the hard limit; return the number of parallel connections that it allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    proxied = any(target.ssh_arguments for target in targets)
    return max(8, (min(hard, 65536) - FDS_OWN) // (FDS_PROXY if proxied else FDS_DIRECT))


def write(answer: Answer) -> None:
    """Write one answer as a JSON line."""
    sys.stdout.write(json.dumps(asdict(answer)) + "\n")
    sys.stdout.flush()


def run_all(session: Session, targets: list[Target]) -> None:
    """Run the command on every host, and write the answers as they arrive."""
    pool = Pool(min(len(targets), in_flight(targets)))

    def one(host: Any, target: Target) -> None:
        began = time.monotonic()
        answer = session.answer(host, target)
        write(replace(answer, seconds=round(time.monotonic() - began, 3)))

    for start in range(0, len(targets), HOSTS_PER_STATE):
        some = targets[start : start + HOSTS_PER_STATE]
        inventory = Inventory(([(target.host, session.connector_data(target)) for target in some], {}))
        State(inventory, Config(CONNECT_TIMEOUT=session.request["timeout_s"], PARALLEL=1))
        for target in some:
            pool.spawn(one, inventory.get_host(target.host), target)
    pool.join()


def read_request() -> dict[str, Any]:
    """Read the request. Afterwards the end of stdin means that the parent process is gone, and ends this process."""
    make_nonblocking(0)
    text = b""
    while not text.endswith(b"\n"):
        data = nb_read(0, 1 << 20)
        if not data:
            sys.exit("the request is incomplete")
        text += data

    main_greenlet = gevent.getcurrent()

    def end_with_parent() -> None:
        nb_read(0, 1)
        gevent.kill(main_greenlet, SystemExit(1))

    gevent.spawn(end_with_parent)
    request: dict[str, Any] = json.loads(text)
    return request


def main() -> None:
    """Answer one request."""
    # pyinfra and paramiko would log errors that the answers contain.
    logging.disable(logging.CRITICAL)
    request = read_request()
    targets = [Target(**{**data, "ssh_arguments": tuple(data["ssh_arguments"])}) for data in request["targets"]]
    file = Path(request["known_hosts"])
    pinned = split_known_hosts(file.read_text(encoding="utf-8", errors="replace") if file.is_file() else "")
    with tempfile.TemporaryDirectory(prefix="primus-fleet-") as folder:
        run_all(Session(request, pinned, Path(folder)), targets)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
