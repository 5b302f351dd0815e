"""`primus-cli broker`: has the SSH key and the kubeconfig of the watchers, runs as its own account, and serves the owners of jobs.

A watcher runs as its job's user, who can inspect every process of that account, so a watcher has no secrets. It sends requests to this
program through a socket of its host. The kernel reports the account of the sender, which must own the job's folder and be one that root
allows to have jobs. Hosts, the key and the API server come from root's settings, never from a job.

A separate process answers each request, and ends within a time limit.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import pwd
import re
import selectors
import signal
import socket
import stat
import struct
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from primus_bootstrap.core.errors import PlanError, PrimusError, UsageError
from primus_bootstrap.core.structured import InvalidDataError, read, readable
from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.untrusted import parse_json
from primus_bootstrap.launch.watch import kube_broker
from primus_bootstrap.launch.watch.broker_client import KUBERNETES, NODE, REFUSED, SCHEMA, SOCKET, NoAnswerError, RefusedError
from primus_bootstrap.launch.watch.job_spec import JOB_ID
from primus_bootstrap.launch.watch.kube_api import Api, ApiRefusedError, ApiUnavailableError
from primus_bootstrap.launch.watch.kube_broker import KubernetesRules
from primus_bootstrap.launch.watch.ssh import Channel, Ssh

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger(__name__)

SETTINGS = Path("/etc/primus/workload/broker.json")
SETTINGS_SCHEMA = "primus.broker-settings/1"
# A watcher queries 32 hosts in parallel, and an account may have several jobs.
_MAX_PROCESSES, _MAX_PER_ACCOUNT = 256, 96
_READ_S, _MAX_REQUEST_S, _MARGIN_S = 10.0, 90.0, 10.0
_MAX_BYTES = 8 << 20  # a request may name thousands of excluded hosts
_VERBS = ("probe", "start", "status", "stop")
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid
_FIX = "apply the phase scheduling to this host"
_SAME_RELEASE = "install the same release of primus-cli on all hosts"
_BY_WATCHER = "send requests through the job's own watcher"
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_ADDRESS = re.compile(r"(\[(?P<address>[^\]\s]+)\]:(?P<port>[0-9]{1,5})|(?P<plain>[^\[\s]\S*)) ")


@dataclass(frozen=True)
class Node:
    """The address of a host, and the file with its host keys."""

    address: str
    port: int
    known_hosts: Path


@readable
@dataclass(frozen=True)
class Settings:
    """Root's settings."""

    folder: Path
    accounts: tuple[str, ...]
    host_keys: Path  # a folder with a known_hosts file per host, named after it, with address, port and keys
    account: str
    identity: str
    kubernetes: KubernetesRules = field(default_factory=KubernetesRules)

    def node(self, name: str) -> Node:
        """Return the address of a host.

        Raises:
            UsageError: The settings have no such host.
        """
        path = self.host_keys / name
        try:
            line = path.read_text("utf-8", "replace").split("\n", 1)[0] if _HOST.fullmatch(name) else ""
        except OSError:
            line = ""
        found = _ADDRESS.match(line)
        if found is None:
            raise UsageError(f"{name} is not a host of workload_node", fix="add it to the group, and apply the phase scheduling")
        return Node(found["plain"] or found["address"], int(found["port"] or 22), path)


def main(words: Sequence[str]) -> int:
    """Serve until SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="primus-cli broker", description="Connects to hosts and to Kubernetes for the watchers of training jobs."
    )
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="root's settings")
    parser.add_argument("--socket", type=Path, default=SOCKET, help="where to listen")
    options = parser.parse_args(list(words))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    read_settings(options.settings)
    with _listen(options.socket) as listener:
        _Server(listener, options.settings).serve()
    return 0


def read_settings(path: Path) -> Settings:
    """Read root's settings.

    Raises:
        PlanError: They are missing or invalid.
    """
    try:
        return read(Settings, parse_json(path.read_text("utf-8")), origin=str(path), schema=SETTINGS_SCHEMA, ignore_unknown=True)
    except InvalidDataError as error:
        raise PlanError(error.what, fix=_FIX) from error
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: cannot be read: {error}", fix=_FIX) from error


def answer(request: Mapping[str, Any], uid: int, settings: Settings) -> Any:
    """Carry out a request, and return the answer.

    Args:
        uid: The account of the sender, from the kernel.

    Raises:
        PrimusError: The request is invalid or not allowed.
        RefusedError: The host refused it.
        NoAnswerError: The host did not answer.
        ApiRefusedError: The API server refused it.
        ApiUnavailableError: The API server did not answer.
    """
    if request.get("schema") != SCHEMA:
        raise UsageError("unknown request", fix=_SAME_RELEASE)
    inner = request.get("request")
    limit_s = request.get("timeout_s")
    if not isinstance(inner, dict) or not isinstance(limit_s, (int, float)) or not 0 < limit_s <= _MAX_REQUEST_S:
        raise UsageError("the request is malformed", fix=_SAME_RELEASE)
    if request.get("what") == NODE:
        return _ask_node(str(request.get("node")), inner, float(limit_s), uid, settings)
    if request.get("what") != KUBERNETES:
        raise UsageError("unknown request", fix=_SAME_RELEASE)
    if not settings.kubernetes.kubeconfig:
        raise UsageError("this host has no access to Kubernetes", fix="set primus_watch_kubeconfig_file, and apply the phase scheduling")
    account = _owner(inner, uid, settings)
    return kube_broker.perform(inner, account, settings.kubernetes, Api(Path(settings.kubernetes.kubeconfig)))


def _ask_node(name: str, inner: Mapping[str, Any], limit_s: float, uid: int, settings: Settings) -> dict[str, Any]:
    node = settings.node(name)
    if inner.get("verb") not in _VERBS:
        raise UsageError("unknown request for a host", fix=_SAME_RELEASE)
    sent = {key: inner[key] for key in ("verb", "job", "attempt", "key", "rank", "force") if key in inner}
    if inner["verb"] != "probe":
        sent["user"] = _owner(inner, uid, settings).pw_name
    elif uid:
        _account(uid, settings)
    ssh = Ssh(settings.account, settings.identity, str(node.known_hosts))
    return Channel(ssh).ask(node.address, node.port, sent, timeout_s=limit_s)


def _account(uid: int, settings: Settings) -> pwd.struct_passwd:
    """Return the account of the sender, if it may have jobs."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError as error:
        raise UsageError(f"the account number {uid} has no name on this host", fix="add it to users_groups_accounts, and apply") from error
    if found.pw_name not in settings.accounts:
        fix = "add it to users_groups_accounts without sudo_rules, and apply the phases baseline and scheduling"
        raise UsageError(f"{found.pw_name} may not have jobs", fix=fix)
    return found


def _owner(inner: Mapping[str, Any], uid: int, settings: Settings) -> pwd.struct_passwd:
    """Return the account of the sender, after checking that it owns the job's folder."""
    account, job = _account(uid, settings), inner.get("job")
    if not isinstance(job, str) or not JOB_ID.fullmatch(job):
        raise UsageError("the request has no valid job", fix=_BY_WATCHER)
    try:
        # The broker cannot read the folder. Its name is enough, because only root can change the parent.
        with safe_files.open_folder(settings.folder) as jobs:
            found = jobs.stat(job)
    except OSError as error:
        raise PlanError(f"{settings.folder / job}: {error}", fix="mount the shared storage on this host") from error
    if found.st_uid != uid or not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"the job {job} does not belong to {account.pw_name}", fix=_BY_WATCHER)
    return account


class _Server:
    """Accepts connections, and starts a process for each."""

    def __init__(self, listener: socket.socket, settings: Path) -> None:
        self.listener, self.settings = listener, settings
        self.children: dict[int, int] = {}  # process -> account of the sender
        self.stopped = False

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
        signal.set_wakeup_fd(writing)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes selector.select
        self.listener.settimeout(0)
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            selector.register(reading, selectors.EVENT_READ)
            while not self.stopped:
                for key, _ in selector.select():
                    if key.fileobj == reading:
                        os.read(reading, 1 << 12)
                        self._reap()
                    else:
                        self._accept()
        for child in list(self.children):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        with connection:
            _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            counted = Counter(self.children.values())
            if len(self.children) >= _MAX_PROCESSES or counted[uid] >= _MAX_PER_ACCOUNT:
                log.warning("account %d: busy: it has %d requests, all accounts have %d", uid, counted[uid], len(self.children))
                connection.settimeout(1.0)
                with suppress(OSError):
                    connection.sendall(_line({"ok": False, "kind": "silent", "error": "the broker is busy; retry"}))
                return
            try:
                child = os.fork()
            except OSError:
                log.exception("cannot start a process")
                return
            if child == 0:
                self._child(connection, uid)
            self.children[child] = uid

    def _child(self, connection: socket.socket, uid: int) -> NoReturn:
        """Answer one request; SIGALRM ends this process at the time limit."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            signal.alarm(int(_READ_S + _MAX_REQUEST_S + _MARGIN_S))
            self.listener.close()
            connection.settimeout(_READ_S)
            connection.sendall(_line(_answer(connection, uid, self.settings)))
        except BaseException:
            log.exception("account %d: the request failed", uid)
        finally:
            os._exit(0)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                child, _ = os.waitpid(-1, os.WNOHANG)
                if not child:
                    return
                self.children.pop(child, None)


def _answer(connection: socket.socket, uid: int, path: Path) -> dict[str, Any]:
    try:
        request = _receive(connection)
        return {"ok": True, "answer": answer(request, uid, read_settings(path))}
    except (RefusedError, ApiRefusedError) as error:
        return {"ok": False, "kind": REFUSED, "error": str(error), "status": error.status}
    except PrimusError as error:
        log.warning("account %d: refused: %s", uid, error.what)
        return {"ok": False, "kind": REFUSED, "error": f"{error.what}; fix: {error.fix}"}
    except (NoAnswerError, ApiUnavailableError) as error:
        return {"ok": False, "kind": "silent", "error": str(error)}


def _receive(connection: socket.socket) -> dict[str, Any]:
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        if not piece:
            break
        data += piece
        if len(data) > _MAX_BYTES:
            raise UsageError("the request is too large", fix="exclude fewer hosts")
    try:
        return dict(parse_json(data.decode("utf-8", "replace")))
    except (ValueError, TypeError) as error:
        raise UsageError("the request is not a line of JSON", fix=_BY_WATCHER) from error


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"


def _listen(path: Path) -> socket.socket:
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o666)  # the account of the sender decides what is allowed
    listener.listen(128)
    return listener
