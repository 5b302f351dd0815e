"""The process that talks to the hosts, with pyinfra: one JSON line in on stdin, one JSON line out for each host.

A process of its own because gevent's patching must come before any other import and does not go together with Ansible's
own forking. pyinfra makes the connections; the command then runs by `run_command` here, since pyinfra's own asks on the
terminal when sudo wants a password, decodes output strictly, and keeps all of it.
"""

from __future__ import annotations

# ruff: noqa: E402 (without the patching before all else time-outs are not kept)
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

# Of a host's stdout and stderr, each; what is more is read and dropped.
KEPT_BYTES = 1 << 20
# A handshake costs some 5 ms of one core: more at once would only make each of them slow.
HANDSHAKES = 48
# A host that is not through by then waits rather than works, and lets the next one in.
HANDSHAKE_PATIENCE_S = 1.0
# File descriptors of a host: a socket and one to spare; a proxy command's pair and pipes while it starts.
FDS_DIRECT, FDS_PROXY, FDS_OWN = 2, 8, 64
# Hosts that share one pyinfra state, whose set-up costs the square of their number.
HOSTS_PER_STATE = 100


class UnansweredError(Exception):
    """A host did not answer, for a cause that has a name."""

    def __init__(self, cause: str, detail: str) -> None:
        """Keep the cause for machines and the detail for people."""
        super().__init__(detail)
        self.cause = cause


class HandshakeLimiter:
    """How many hosts may be in their handshake at once; a slow one gives its place away, a hanging one delays nobody."""

    def __init__(self, size: int) -> None:
        """Start with every place free."""
        self._free = BoundedSemaphore(size)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Hold a place until the end of the block or of the patience."""
        self._free.acquire()
        held = [True]

        def give_back() -> None:
            if held:
                held.clear()
                self._free.release()

        timer = gevent.spawn_later(HANDSHAKE_PATIENCE_S, give_back)
        try:
            yield
        finally:
            timer.kill(block=False)
            give_back()


class Transport:
    """The bytes' way to a host: a connected socket, and the proxy command at its other end where there is one."""

    def __init__(self, sock: socket.socket, proxy: subprocess.Popen[bytes] | None = None) -> None:
        """Keep both ends."""
        self.socket = sock
        self._proxy = proxy

    @property
    def proxy_words(self) -> str:
        """The last line that the proxy command wrote to its stderr."""
        if self._proxy is None or self._proxy.stderr is None:
            return ""
        with gevent.Timeout(0.5, False):  # noqa: FBT003 (it ends the block and raises nothing)
            lines = self._proxy.stderr.read().decode(errors="replace").strip().splitlines()
            return lines[-1].strip() if lines else ""
        return ""

    def close(self) -> None:
        """Close the socket; the proxy command ends with it, or is ended."""
        self.socket.close()
        if self._proxy is not None:
            with contextlib.suppress(ProcessLookupError):
                self._proxy.terminate()


def open_proxy(command: str) -> Transport:
    """Start a proxy command on one end of a socket pair; paramiko's own class never sees the end of a pipe, and spins."""
    ours, theirs = socket.socketpair()
    with theirs:
        proxy = subprocess.Popen(["sh", "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE)
    return Transport(ours, proxy)


def open_way(route: Route, timeout_s: float) -> Transport:
    """Return the connected way to a host."""
    if route.proxy_command:
        return open_proxy(route.proxy_command)
    where = f"{route.address} port {route.port}"
    try:
        return Transport(socket.create_connection((route.address, route.port), timeout=timeout_s))
    except TimeoutError:
        raise UnansweredError("timeout", f"no answer from {where} within {timeout_s:g} s") from None
    except socket.gaierror as error:
        raise UnansweredError("name", f"{route.address} has no address: {error.strerror}") from None
    except ConnectionRefusedError:
        raise UnansweredError("refused", f"{where} refuses connections") from None
    except OSError as error:
        raise UnansweredError("unreachable", f"{where}: {error.strerror or error}") from None


def log_in(host: Any, route: Route, way: Transport) -> None:
    """Let pyinfra shake hands and authenticate over the connected way."""
    try:
        host.connect(show_errors=False, raise_exceptions=True)
    except PyinfraError as error:
        met, who = error.__context__, f"{route.user or 'this user'} at {route.address}"
        if isinstance(met, BadHostKeyException):
            key = met.key.fingerprint
            raise UnansweredError("host_key_changed", f"{route.key_name} shows another host key than the pinned one: {key}") from None
        if "No host key" in str(met):
            raise UnansweredError("host_key_unknown", f"no host key of {route.key_name} is pinned") from None
        if isinstance(met, PasswordRequiredException):
            raise UnansweredError("key_file", str(error)) from None
        if isinstance(met, AuthenticationException) or "No authentication methods" in str(met):
            keys = ", ".join(route.key_files) or "the agent and the default keys"
            raise UnansweredError("auth", f"{who} does not accept {keys}: {met}") from None
        if isinstance(met, (SSHException, OSError, EOFError)):
            if route.proxy_command:
                raise UnansweredError("bastion", way.proxy_words or f"{route.proxy_command}: {met}") from None
            raise UnansweredError(
                "protocol", f"{route.address} port {route.port}: {met or 'the connection ended in the handshake'}"
            ) from None
        raise UnansweredError("key_file", str(error)) from None


@cache
def held_by_agent(key_file: str) -> bool:
    """Return whether a key has a passphrase and there is an agent, which then is the one to ask."""
    if not os.environ.get("SSH_AUTH_SOCK"):
        return False
    try:
        PKey.from_path(key_file)
    except (SSHException, TypeError):  # what a passphrase is answered with depends on the format of the file
        return True
    except (OSError, ValueError):
        return False
    return False


def drain(read: Any) -> tuple[bytes, bool]:
    """Read a stream to its end; return what is kept of it and whether there was more."""
    kept = bytearray()
    more = False
    while data := read(65536):
        room = KEPT_BYTES - len(kept)
        kept += data[:room]
        more = more or len(data) > room
    return bytes(kept), more


def run_command(host: Any, command: str, stdin: str) -> Answer:
    """Run a command over a connection that stands."""
    try:
        channel = host.connector.client.get_transport().open_session()
        sent = time.time()
        channel.exec_command(command)
        readers = gevent.spawn(drain, channel.recv), gevent.spawn(drain, channel.recv_stderr)
        with contextlib.suppress(OSError):  # it did not want all of it; its exit code tells
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
    """Run a command on this machine itself."""
    sent = time.time()
    done = subprocess.run(["sh", "-c", command], input=stdin.encode(), capture_output=True, check=False)
    (stdout, more_out), (stderr, more_err) = (drain(io.BytesIO(data).read) for data in (done.stdout, done.stderr))
    text, errors = stdout.decode(errors="replace"), stderr.decode(errors="replace")
    return Answer(name, done.returncode % 256, text, errors, sent=sent, received=time.time(), truncated=more_out or more_err)


class Session:
    """What every visit to a host shares: the request, pinned keys, the places for handshakes."""

    def __init__(self, request: dict[str, Any], known: KnownHosts, folder: Path) -> None:
        """Keep what is shared."""
        self.request = request
        self.known = known
        self.folder = folder
        self.slots = HandshakeLimiter(HANDSHAKES)

    def connector_data(self, target: Target) -> dict[str, Any]:
        """Return pyinfra's words for a host; what only the route tells is filled in at the visit."""
        return {
            "ssh_config_file": os.devnull,
            "ssh_strict_host_key_checking": "yes",
            "ssh_known_hosts_file": str(self.folder / quote(target.host, safe="")),
            "ssh_paramiko_connect_kwargs": {},
            **({"ssh_password": target.password} if target.password else {}),
        }

    def prepare(self, host: Any, target: Target, route: Route, way: Transport) -> None:
        """Give pyinfra the route, and a known_hosts file of this host alone."""
        # Over a ready connection paramiko uses host name and port for one thing: the name of the host key.
        port = 22 if route.key_name != route.address else route.port
        lines = self.known.lines_for(host_key_name(route.key_name, port))
        Path(host.connector.data["ssh_known_hosts_file"]).write_text(lines, encoding="utf-8")
        timeout_s = self.request["timeout_s"]
        data = host.connector.data
        data.update(ssh_hostname=route.key_name, ssh_port=port, ssh_user=route.user or None)
        if target.key_file and not held_by_agent(route.key_files[0]):
            data["ssh_key"] = route.key_files[0]
        data["ssh_paramiko_connect_kwargs"] |= {
            "sock": way.socket, "banner_timeout": timeout_s, "auth_timeout": timeout_s, "channel_timeout": timeout_s,
            **({"key_filename": list(route.key_files), "look_for_keys": False} if route.key_files and not target.key_file else {}),
            **({"allow_agent": False} if route.identities_only else {}),
        }  # fmt: skip

    def answer(self, host: Any, target: Target) -> Answer:
        """Visit one host; it may take `timeout_s`, waiting for a place not counted."""
        budget_s, began, stage, way = self.request["timeout_s"], time.monotonic(), "connecting", None
        try:
            with gevent.Timeout(budget_s):
                if target.local:
                    stage = "running the command"
                    return run_here(target.host, self.request["command"], self.request["stdin"].get(target.host, ""))
                route = route_of(target)
                way = open_way(route, budget_s)
                self.prepare(host, target, route, way)
            left_s = budget_s - (time.monotonic() - began)
            stage = "logging in"
            with contextlib.ExitStack() as place:
                place.enter_context(self.slots.working())
                with gevent.Timeout(left_s):
                    log_in(host, route, way)
                    place.close()
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
            if way is not None:
                way.close()


def in_flight(targets: list[Target]) -> int:
    """Return how many hosts may be visited at once, after asking for every file descriptor that may be had."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    proxied = any(target.ssh_arguments for target in targets)
    return max(8, (min(hard, 65536) - FDS_OWN) // (FDS_PROXY if proxied else FDS_DIRECT))


def write(answer: Answer) -> None:
    """Write one answer as a JSON line."""
    line = {name: getattr(answer, name) for name in Answer.__slots__}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def visit_all(visit: Session, targets: list[Target]) -> None:
    """Visit every host, and write each answer as it comes."""
    pool = Pool(min(len(targets), in_flight(targets)))

    def one(host: Any, target: Target) -> None:
        began = time.monotonic()
        answer = visit.answer(host, target)
        fields = {name: getattr(answer, name) for name in Answer.__slots__}
        write(Answer(**{**fields, "seconds": round(time.monotonic() - began, 3)}))

    for start in range(0, len(targets), HOSTS_PER_STATE):
        some = targets[start : start + HOSTS_PER_STATE]
        inventory = Inventory(([(target.host, visit.connector_data(target)) for target in some], {}))
        State(inventory, Config(CONNECT_TIMEOUT=visit.request["timeout_s"], PARALLEL=1))
        for target in some:
            pool.spawn(one, inventory.get_host(target.host), target)
    pool.join()


def read_request() -> dict[str, Any]:
    """Read the request; from then on an end of stdin means that whoever asked is gone, and ends this process."""
    make_nonblocking(0)
    text = b""
    while not text.endswith(b"\n"):
        data = nb_read(0, 1 << 20)
        if not data:
            sys.exit("the request ended in the middle")
        text += data

    whole = gevent.getcurrent()

    def end_with_parent() -> None:
        nb_read(0, 1)
        gevent.kill(whole, SystemExit(1))

    gevent.spawn(end_with_parent)
    request: dict[str, Any] = json.loads(text)
    return request


def main() -> None:
    """Answer one request."""
    # pyinfra and paramiko log what the answers say anyway.
    logging.disable(logging.CRITICAL)
    request = read_request()
    targets = [Target(**{**data, "ssh_arguments": tuple(data["ssh_arguments"])}) for data in request["targets"]]
    file = Path(request["known_hosts"])
    known = split_known_hosts(file.read_text(encoding="utf-8", errors="replace") if file.is_file() else "")
    with tempfile.TemporaryDirectory(prefix="primus-fleet-") as folder:
        visit_all(Session(request, known, Path(folder)), targets)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
