"""`primus-cli broker`: holds the watchers' SSH key and kubeconfig under an account of its own, and uses them for job owners only.

A watcher runs as its job's user, who can look into every process of that account. So a watcher holds no secret: it asks this program over a
socket of its host. The kernel says which account asks; the owner of the job's folder says whose the job is; both must be the same, and an
account that root has named. Hosts, the key and the API server come from root's settings, never from a job.

Each request is answered by a process of its own, which ends after a fixed time at the latest.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from primus_bootstrap.core.errors import PlanError, PrimusError, UsageError
from primus_bootstrap.launch import safe_files
from primus_bootstrap.launch.untrusted import parse_json
from primus_bootstrap.launch.watch import kube_broker
from primus_bootstrap.launch.watch.broker_client import KUBERNETES, NODE, REFUSED, SCHEMA, SOCKET, NoAnswerError, RefusedError
from primus_bootstrap.launch.watch.job_spec import JOB_ID
from primus_bootstrap.launch.watch.kube_api import Api, ApiRefusedError, ApiSilentError
from primus_bootstrap.launch.watch.ssh import Channel, Ssh

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from primus_bootstrap.launch.watch.kube_broker import KubernetesRules

log = logging.getLogger(__name__)

SETTINGS = Path("/etc/primus/workload/broker.json")
SETTINGS_SCHEMA = "primus.broker-settings/1"
# A watcher asks 32 hosts at once, and an account may have several jobs.
_MOST_CHILDREN, _MOST_OF_ONE = 256, 96
_READ_S, _LONGEST_S, _MARGIN_S = 10.0, 90.0, 10.0
_LARGEST_BYTES = 8 << 20  # a job that leaves out thousands of hosts names them
_VERBS = ("probe", "start", "status", "stop")
_PEER = struct.Struct("3i")  # struct ucred: pid, uid, gid
_FIX = "apply the phase scheduling to this host"
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_ADDRESS = re.compile(r"(\[(?P<address>[^\]\s]+)\]:(?P<port>[0-9]{1,5})|(?P<plain>[^\[\s]\S*)) ")


@dataclass(frozen=True)
class Node:
    """How a host is reached; `known_hosts` holds the keys that it must answer with."""

    address: str
    port: int
    known_hosts: Path


@dataclass(frozen=True)
class Settings:
    """What root has written: where jobs lie, who may have them, and how hosts are reached.

    `host_keys` is a folder with one file for each host, in the form of known_hosts: its name is the host's, its lines say by which address
    and port it is reached, and with which keys it must answer.
    """

    folder: Path
    accounts: tuple[str, ...]
    host_keys: Path
    account: str
    identity: str
    kubernetes: KubernetesRules

    def node(self, name: str) -> Node:
        """Return how a host is reached.

        Raises:
            UsageError: Root has named no such host.
        """
        path = self.host_keys / name
        try:
            line = path.read_text("utf-8", "replace").split("\n", 1)[0] if _HOST.fullmatch(name) else ""
        except OSError:
            line = ""
        found = _ADDRESS.match(line)
        if found is None:
            raise UsageError(f"{name} is no host of workload_node", fix="put it into the group, and apply the phase scheduling")
        return Node(found["plain"] or found["address"], int(found["port"] or 22), path)


def main(words: Sequence[str]) -> int:
    """Serve until SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(prog="primus-cli broker", description="Asks hosts and Kubernetes for the watchers of training jobs.")
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
        PlanError: They cannot be used.
    """
    try:
        data = parse_json(path.read_text("utf-8"))
        if data["schema"] != SETTINGS_SCHEMA:
            raise PlanError(f"{path}: schema {data['schema']!r}; this program reads {SETTINGS_SCHEMA}", fix=_FIX)
        folder, host_keys = Path(data["folder"]), Path(data["host_keys"])
        accounts = tuple(str(name) for name in data["accounts"])
        rules = kube_broker.read_rules(data.get("kubernetes") or {})
        return Settings(folder, accounts, host_keys, str(data["account"]), str(data["identity"]), rules)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{path}: cannot be used: {type(error).__name__}: {error}", fix=_FIX) from error


def answer(request: Mapping[str, Any], uid: int, settings: Settings) -> Any:
    """Do what a request asks for.

    Args:
        request: what was sent.
        uid: the account that asks, as the kernel says.
        settings: root's.

    Raises:
        PrimusError: It is refused.
        RefusedError: The host refused.
        NoAnswerError: The host gave no answer.
        ApiRefusedError: The API server refused.
        ApiSilentError: It gave no answer.
    """
    if request.get("schema") != SCHEMA:
        raise UsageError("this is no request that is known here", fix="have the same version of primus-cli on all hosts")
    inner = request.get("request")
    limit_s = request.get("timeout_s")
    if not isinstance(inner, dict) or not isinstance(limit_s, (int, float)) or not 0 < limit_s <= _LONGEST_S:
        raise UsageError("the request is not well formed", fix="have the same version of primus-cli on all hosts")
    if request.get("what") == NODE:
        return _ask_node(str(request.get("node")), inner, float(limit_s), uid, settings)
    if request.get("what") == KUBERNETES and settings.kubernetes.kubeconfig:
        account = _owner(inner, uid, settings)
        return kube_broker.perform(inner, account, settings.kubernetes, Api(Path(settings.kubernetes.kubeconfig)))
    raise UsageError("this host serves no such request", fix="set primus_watch_kubeconfig_file, and apply the phase scheduling")


def _ask_node(name: str, inner: Mapping[str, Any], limit_s: float, uid: int, settings: Settings) -> dict[str, Any]:
    node = settings.node(name)
    if inner.get("verb") not in _VERBS:
        raise UsageError("this is no request for a host", fix="have the same version of primus-cli on all hosts")
    sent = {key: inner[key] for key in ("verb", "job", "attempt", "key", "rank", "force") if key in inner}
    if inner["verb"] != "probe":
        sent["user"] = _owner(inner, uid, settings).pw_name
    elif uid:
        _account(uid, settings)
    ssh = Ssh(settings.account, settings.identity, str(node.known_hosts))
    return Channel(ssh).ask(node.address, node.port, sent, timeout_s=limit_s)


def _account(uid: int, settings: Settings) -> pwd.struct_passwd:
    """Return the account that asks, if root has named it."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError as error:
        raise UsageError(f"the account number {uid} has no name here", fix="add it to users_groups_accounts, and apply") from error
    if found.pw_name not in settings.accounts:
        fix = "accounts of users_groups_accounts without sudo_rules may have jobs; add it, and apply the phases baseline and scheduling"
        raise UsageError(f"{found.pw_name} may have no jobs", fix=fix)
    return found


def _owner(inner: Mapping[str, Any], uid: int, settings: Settings) -> pwd.struct_passwd:
    """Return the account that asks, once its job's folder has shown that the job is its own."""
    account, job = _account(uid, settings), inner.get("job")
    if not isinstance(job, str) or not JOB_ID.fullmatch(job):
        raise UsageError("the request names no job", fix="let the watcher ask")
    try:
        # The broker may not look into the folder; below a parent that only root can change, its name is enough.
        with safe_files.open_folder(settings.folder) as jobs:
            found = jobs.stat(job)
    except OSError as error:
        raise PlanError(f"{settings.folder / job}: cannot be looked at: {error}", fix="mount the shared storage on this host") from error
    if found.st_uid != uid or not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"the job {job} is not {account.pw_name}'s", fix="let the job's own watcher ask")
    return account


class _Server:
    """Accepts connections, one process each, and ends those that take too long."""

    def __init__(self, listener: socket.socket, settings: Path) -> None:
        self.listener, self.settings = listener, settings
        self.children: dict[int, int] = {}  # process -> account that asks
        self.stopped = False

    def serve(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETFL, os.O_NONBLOCK)
        signal.set_wakeup_fd(writing)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes the wait below
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
            if len(self.children) >= _MOST_CHILDREN or counted[uid] >= _MOST_OF_ONE:
                log.warning("account %d: refused for now: %d requests of its own, %d in all", uid, counted[uid], len(self.children))
                connection.settimeout(1.0)
                with suppress(OSError):
                    connection.sendall(_line({"ok": False, "kind": "silent", "error": "the broker is busy; ask again"}))
                return
            try:
                child = os.fork()
            except OSError:
                log.exception("no process can be started")
                return
            if child == 0:
                self._child(connection, uid)
            self.children[child] = uid

    def _child(self, connection: socket.socket, uid: int) -> NoReturn:
        """Answer one request; the kernel ends this process when its time is over."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            signal.alarm(int(_READ_S + _LONGEST_S + _MARGIN_S))
            self.listener.close()
            connection.settimeout(_READ_S)
            connection.sendall(_line(_answer(connection, uid, self.settings)))
        except BaseException:
            log.exception("account %d: the request ended with an error", uid)
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
    except (NoAnswerError, ApiSilentError) as error:
        return {"ok": False, "kind": "silent", "error": str(error)}


def _receive(connection: socket.socket) -> dict[str, Any]:
    taken = bytearray()
    while not taken.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        if not piece:
            break
        taken += piece
        if len(taken) > _LARGEST_BYTES:
            raise UsageError("the request is too large", fix="leave out fewer hosts")
    try:
        return dict(parse_json(taken.decode("utf-8", "replace")))
    except (ValueError, TypeError) as error:
        raise UsageError("the request is no JSON line", fix="let the watcher ask") from error


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"


def _listen(path: Path) -> socket.socket:
    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o666)  # who may ask for what is decided by the account that asks
    listener.listen(128)
    return listener
