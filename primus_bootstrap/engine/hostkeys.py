"""Pins host keys in the cluster's known_hosts file, on first contact or from `host_key` in hosts.yaml.

The file has ssh's format, so `ssh-keygen -R` works on it. The comment of a line contains the host and its address from
hosts.yaml, because ssh_config may replace the address by another name. It also marks keys that came from `host_key`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import shlex
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine.events import HostPinned
from primus_bootstrap.engine.ssh import first_contact, known_hosts_path, route_arguments, ssh_name
from primus_bootstrap.engine.state_folder import state_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from primus_bootstrap.inventory.cluster import Cluster, Connection

_CONTACT_TIMEOUT_S = 15
_CONFIGURATION_TIMEOUT_S = 20  # `ssh -G` contacts no host, but ssh_config may run programs (`Match exec`)
_THREADS = 32
# The default MaxStartups of the bastion's sshd (10:30:100) drops connections from the eleventh on.
_THREADS_BEHIND_BASTION = 8
_FROM_INVENTORY = "host_key"  # in the comment of a key from hosts.yaml
_NO_LOGIN = ("-o", "BatchMode=yes", "-o", "PreferredAuthentications=none", "-o", "ControlMaster=no", "-o", "ControlPath=none")


@dataclass(frozen=True, slots=True)
class Conflict:
    """`host_key` in hosts.yaml differs from the pinned key, so the host must not be contacted."""

    host: str
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the file; `other` is an unchanged line, such as a comment or `@cert-authority`."""

    names: tuple[str, ...]
    key_type: str
    key: str
    comment: str
    other: str = ""

    @property
    def line(self) -> str:
        return self.other or f"{','.join(self.names)} {self.key_type} {self.key} {self.comment}".rstrip()


def pin_host_keys(cluster: Cluster, hosts: Sequence[str]) -> tuple[HostPinned, ...]:
    """Pin the key of each host that has none; skip hosts that do not answer.

    A pinned key that came from `host_key` is replaced if hosts.yaml has another key now.

    Returns:
        The new pins, in the order of `hosts`.
    """
    path = known_hosts_path(cluster)
    index = _index(_read(path))
    links = [(link, _entries_of(link, index)) for link in _links(cluster, hosts)]
    replaced = {link.host: pinned for link, pinned in links if _is_replaced(link, pinned)}
    missing = [link for link, pinned in links if not pinned or link.host in replaced]
    if not missing:
        return ()
    behind_bastion = any(link.ssh_common_args for link in missing)
    with ThreadPoolExecutor(_THREADS_BEHIND_BASTION if behind_bastion else _THREADS) as pool:
        pinned_now = [pair for pair in pool.map(_first_key, missing) if pair]
    removed = {entry for _, pin in pinned_now for entry in replaced.get(pin.host, ())}
    _update(path, [entry for entry, _ in pinned_now], removed)
    return tuple(pin for _, pin in pinned_now)


def key_conflicts(cluster: Cluster, hosts: Sequence[str]) -> tuple[Conflict, ...]:
    """Return the hosts whose `host_key` in hosts.yaml differs from the pinned key."""
    path = known_hosts_path(cluster)
    index = _index(_read(path))
    conflicts = []
    for link in _links(cluster, hosts):
        pinned = _entries_of(link, index)
        expected = _inventory_key(link)
        if expected and pinned and all(entry.key != expected.key for entry in pinned):
            what = f"host_key in hosts.yaml is {fingerprint(expected.key)}, but the pinned key is {fingerprint(pinned[0].key)}"
            forget = shlex.join(["ssh-keygen", "-f", str(path), "-R", pinned[0].names[0]])
            fix = f"if {link.host} was reinstalled: {forget}, then apply again; otherwise correct host_key in hosts.yaml"
            conflicts.append(Conflict(link.host, what, fix))
    return tuple(conflicts)


def pinned_key(cluster: Cluster, host: str) -> str:
    """Return the pinned key of a host as `type base64`, or an empty string."""
    link = cluster.connection(host)
    entries = _entries_of(link, _index(_read(known_hosts_path(cluster))))
    return f"{entries[0].key_type} {entries[0].key}" if entries else ""


def offered_key(cluster: Cluster, host: str) -> str:
    """Return the key that a host presents now, without a check; an empty string if it does not answer."""
    entry = _contact(cluster.connection(host))
    return f"{entry.key_type} {entry.key}" if entry else ""


def replace_pin(cluster: Cluster, host: str, key: str) -> None:
    """Replace the pinned keys of a host by a key that a person confirmed."""
    link, path = cluster.connection(host), known_hosts_path(cluster)
    key_type, base64_key = key.split()[:2]
    removed = set(_entries_of(link, _index(_read(path))))
    _update(path, [_Entry((_resolved_name(link),), key_type, base64_key, _identity(link))], removed)


def forget_host_keys(cluster: Cluster, hosts: Sequence[str]) -> None:
    """Remove the pinned keys of hosts that were reinstalled or removed from the cluster."""
    path = known_hosts_path(cluster)
    with _locked(path):
        _write(path, _without(cluster, hosts, _read(path)))


def without_hosts(cluster: Cluster, hosts: Iterable[str], copy: Path) -> Path:
    """Write a copy of the pinned keys without those of `hosts`, so that ssh refuses to connect to them."""
    _write(copy, _without(cluster, tuple(hosts), _read(known_hosts_path(cluster))))
    return copy


def fingerprint(key: str) -> str:
    """Return the SHA256 fingerprint of a public key in base64, in ssh's format."""
    try:
        digest = hashlib.sha256(base64.b64decode(key, validate=True)).digest()
    except ValueError:
        return "no valid key"
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _links(cluster: Cluster, hosts: Sequence[str]) -> Iterator[Connection]:
    """Yield the connections of those hosts that Ansible reaches over ssh."""
    for host in hosts:
        if str(cluster.view.variables(host).get("ansible_connection") or "ssh") in ("ssh", "smart", "ansible.builtin.ssh"):
            yield cluster.connection(host)


def _identity(link: Connection) -> str:
    return f"primus:{link.host}@{ssh_name(link.address, link.port)}"


def _index(entries: Sequence[_Entry]) -> dict[str, list[_Entry]]:
    """Index the entries by name and by host, so that a look-up takes the same time in a large cluster."""
    index: dict[str, list[_Entry]] = {}
    for entry in entries:
        for word in (*entry.names, *entry.comment.split()[:1]) if entry.names else ():
            index.setdefault(word, []).append(entry)
    return index


def _entries_of(link: Connection, index: Mapping[str, list[_Entry]]) -> list[_Entry]:
    entries = [*index.get(ssh_name(link.address, link.port), ()), *index.get(_identity(link), ())]
    return list(dict.fromkeys(entries))


def _without(cluster: Cluster, hosts: Sequence[str], entries: Sequence[_Entry]) -> list[_Entry]:
    index = _index(entries)
    removed = {entry for link in _links(cluster, hosts) for entry in _entries_of(link, index)}
    return [entry for entry in entries if entry not in removed]


def _inventory_key(link: Connection) -> _Entry | None:
    """Read `host_key`: a public key as in /etc/ssh/ssh_host_ed25519_key.pub; its comment is ignored."""
    words = link.host_key.split()
    return (
        _Entry((ssh_name(link.address, link.port),), words[0], words[1], f"{_identity(link)} {_FROM_INVENTORY}")
        if len(words) >= 2
        else None
    )


def _first_key(link: Connection) -> tuple[_Entry, HostPinned] | None:
    expected = _inventory_key(link)
    if expected:
        entry: _Entry | None = _Entry((_resolved_name(link),), expected.key_type, expected.key, expected.comment)
    else:
        entry = _contact(link)
    if entry is None:
        return None
    source = "hosts.yaml" if expected else "first contact"
    return entry, HostPinned(link.host, link.address, entry.key_type, fingerprint(entry.key), source)


def _contact(link: Connection) -> _Entry | None:
    """Connect to a host without logging in, and return the key that ssh records."""
    with tempfile.TemporaryDirectory(prefix="primus-key-") as folder:
        target = Path(folder) / "known_hosts"
        timeout = ["-o", f"ConnectTimeout={_CONTACT_TIMEOUT_S}"]
        command = ["ssh", *first_contact(target), *_NO_LOGIN, *timeout, *route_arguments(link), link.address, "true"]
        with contextlib.suppress(TimeoutError):
            run_command(command, timeout_s=2 * _CONTACT_TIMEOUT_S)
        entries = _read(target)
    return _Entry(entries[0].names, entries[0].key_type, entries[0].key, _identity(link)) if entries else None


def _resolved_name(link: Connection) -> str:
    """Return the name under which ssh looks up the key of a host; ssh_config may replace the address by another name.

    Raises:
        PlanError: ssh does not answer in time.
    """
    try:
        done = run_command(["ssh", "-G", *route_arguments(link), link.address], timeout_s=_CONFIGURATION_TIMEOUT_S)
    except TimeoutError as error:
        fix = f"run `ssh -G {link.address}` by hand; a `Match exec` in ~/.ssh/config or /etc/ssh/ssh_config may hang"
        raise PlanError(f"{link.host}: `ssh -G` did not end within {_CONFIGURATION_TIMEOUT_S} s", fix=fix) from error
    settings = dict(line.split(" ", maxsplit=1) for line in done.stdout.splitlines() if " " in line)
    if alias := settings.get("hostkeyalias"):
        return alias
    return ssh_name(settings.get("hostname", link.address), int(settings.get("port", link.port)))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with state_errors(PlanError, path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = stack.enter_context((path.parent / "known_hosts.lock").open("w", encoding="ascii"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_replaced(link: Connection, pinned: Sequence[_Entry]) -> bool:
    """Return whether all pinned keys of a host came from hosts.yaml, and hosts.yaml has another key now."""
    expected = _inventory_key(link)
    if expected is None or not pinned:
        return False
    return all(entry.comment == expected.comment and entry.key != expected.key for entry in pinned)


def _update(path: Path, new: Sequence[_Entry], removed: AbstractSet[_Entry]) -> None:
    with _locked(path):
        entries = [entry for entry in _read(path) if entry not in removed]
        _write(path, [*entries, *(entry for entry in new if entry not in entries)])


def _read(path: Path) -> list[_Entry]:
    """Read the file. Bytes that are not UTF-8, for example in a comment, are preserved."""
    with state_errors(PlanError, path):
        text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""
    return [_entry(line) for line in text.splitlines()]


def _entry(line: str) -> _Entry:
    words = line.split(None, 3)
    if line.startswith(("#", "@")) or len(words) < 3:
        return _Entry((), "", "", "", other=line)
    return _Entry(tuple(words[0].split(",")), words[1], words[2], words[3] if len(words) > 3 else "")


def _write(path: Path, entries: Sequence[_Entry]) -> None:
    with state_errors(PlanError, path):
        write_atomic(path, "".join(f"{entry.line}\n" for entry in entries).encode(errors="surrogateescape"), mode=0o600)
