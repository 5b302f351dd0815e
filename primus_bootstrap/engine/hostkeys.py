"""The cluster's known_hosts: keys are pinned on first contact or by `host_key` in hosts.yaml, and strict from then on.

Lines are ssh's own, so that `ssh-keygen -R` works on the file. The comment of a line names the host and the address that
hosts.yaml gives it: where the user's ssh_config turns that address into another name, ssh looks that name up, and the
comment still tells whose key it is. A key that came from `host_key` says so there, too.
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
from primus_bootstrap.engine.environment import first_contact, strict_host_keys
from primus_bootstrap.engine.state_errors import state_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from primus_bootstrap.inventory.cluster import Cluster, Connection

_CONTACT_TIMEOUT_S = 15
_CONFIGURATION_TIMEOUT_S = 20  # ssh -G contacts nobody; its configuration may run programs (`Match exec`)
_THREADS = 32
# Everybody goes through one sshd there, and its MaxStartups (10:30:100) drops connections from the eleventh on.
_THREADS_BEHIND_BASTION = 8
_FROM_INVENTORY = "host_key"  # in the comment of a pin that came from hosts.yaml
_NO_LOGIN = ("-o", "BatchMode=yes", "-o", "PreferredAuthentications=none", "-o", "ControlMaster=no", "-o", "ControlPath=none")


@dataclass(frozen=True, slots=True)
class Pin:
    """A key that was pinned now. `fingerprint` is as ssh shows it; `source` is `hosts.yaml` or `first contact`."""

    host: str
    address: str
    key_type: str
    fingerprint: str
    source: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """`host_key` of hosts.yaml and the pinned key differ: the host is not to be contacted."""

    host: str
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the file; `other` is one that is kept as it stands: a comment, or `@cert-authority` of the user's own."""

    names: tuple[str, ...]
    key_type: str
    key: str
    comment: str
    other: str = ""

    @property
    def line(self) -> str:
        return self.other or f"{','.join(self.names)} {self.key_type} {self.key} {self.comment}".rstrip()


def known_hosts_path(cluster: Cluster) -> Path:
    """Return the file that holds the pinned keys of a cluster."""
    return cluster.state_dir.absolute() / "known_hosts"


def pin_host_keys(cluster: Cluster, hosts: Sequence[str]) -> tuple[Pin, ...]:
    """Pin a key for each of these hosts that has none yet; a host that does not answer stays without.

    A pin that came from `host_key` follows hosts.yaml: where that has another key by now, it takes the place of the old one.

    Returns:
        What was pinned now, in the order of `hosts`.
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
        found = [pair for pair in pool.map(_first_key, missing) if pair]
    gone = {entry for _, pin in found for entry in replaced.get(pin.host, ())}
    _add(path, [entry for entry, _ in found], gone)
    return tuple(pin for _, pin in found)


def key_conflicts(cluster: Cluster, hosts: Sequence[str]) -> tuple[Conflict, ...]:
    """Return the hosts whose `host_key` in hosts.yaml is not the pinned key."""
    path = known_hosts_path(cluster)
    index = _index(_read(path))
    found = []
    for link in _links(cluster, hosts):
        pinned = _entries_of(link, index)
        wanted = _given_key(link)
        if wanted and pinned and all(entry.key != wanted.key for entry in pinned):
            what = f"host_key in hosts.yaml is {fingerprint(wanted.key)}, but {fingerprint(pinned[0].key)} is pinned"
            fix = f"if {link.host} was reinstalled: {forget_command(path, pinned[0].names[0])}, then apply again; otherwise mend host_key"
            found.append(Conflict(link.host, what, fix))
    return tuple(found)


def pinned_key(cluster: Cluster, host: str) -> str:
    """Return the key that is pinned for a host, as `type base64`; an empty string where there is none."""
    link = cluster.connection(host)
    entries = _entries_of(link, _index(_read(known_hosts_path(cluster))))
    return f"{entries[0].key_type} {entries[0].key}" if entries else ""


def offered_key(cluster: Cluster, host: str) -> str:
    """Return the key that a host shows now, checked against nothing; an empty string where it does not answer."""
    entry = _contact(cluster.connection(host))
    return f"{entry.key_type} {entry.key}" if entry else ""


def replace_pin(cluster: Cluster, host: str, key: str) -> None:
    """Pin a key that a person vouched for in place of those that are pinned for a host."""
    link, path = cluster.connection(host), known_hosts_path(cluster)
    key_type, base64_key = key.split()[:2]
    gone = set(_entries_of(link, _index(_read(path))))
    _add(path, [_Entry((_resolved_name(link),), key_type, base64_key, _identity(link))], gone)


def forget_host_keys(cluster: Cluster, hosts: Sequence[str]) -> None:
    """Remove the pinned keys of hosts that were reinstalled or that left the cluster."""
    path = known_hosts_path(cluster)
    with _locked(path):
        _write(path, _others(cluster, hosts, _read(path)))


def without_hosts(cluster: Cluster, hosts: Iterable[str], copy: Path) -> Path:
    """Write a copy of the pinned keys without those of `hosts`, so that ssh itself refuses to talk to them."""
    _write(copy, _others(cluster, tuple(hosts), _read(known_hosts_path(cluster))))
    return copy


def ssh_arguments(cluster: Cluster, host: str) -> list[str]:
    """Return the command line that logs in to a host as Ansible would, with its key checked against the pinned one."""
    link = cluster.connection(host)
    return ["ssh", *strict_host_keys(known_hosts_path(cluster)), *_route(link), link.address]


def fingerprint(key: str) -> str:
    """Return the SHA256 fingerprint of a public key in base64, as ssh shows it."""
    try:
        digest = hashlib.sha256(base64.b64decode(key, validate=True)).digest()
    except ValueError:
        return "no valid key"
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def forget_command(path: Path, name: str) -> str:
    """Return the command that removes a pinned key."""
    return shlex.join(["ssh-keygen", "-f", str(path), "-R", name])


def ssh_name(address: str, port: int) -> str:
    """Return the name under which known_hosts keeps an address."""
    return address if port == 22 else f"[{address}]:{port}"


def _links(cluster: Cluster, hosts: Sequence[str]) -> Iterator[Connection]:
    """Yield how to reach the hosts that are reached over ssh."""
    for host in hosts:
        if str(cluster.view.variables(host).get("ansible_connection") or "ssh") in ("ssh", "smart", "ansible.builtin.ssh"):
            yield cluster.connection(host)


def _identity(link: Connection) -> str:
    return f"primus:{link.host}@{ssh_name(link.address, link.port)}"


def _index(entries: Sequence[_Entry]) -> dict[str, list[_Entry]]:
    """Sort entries by every word that may find them, so that a look-up does not depend on the size of the fleet."""
    index: dict[str, list[_Entry]] = {}
    for entry in entries:
        for word in (*entry.names, *entry.comment.split()[:1]) if entry.names else ():
            index.setdefault(word, []).append(entry)
    return index


def _entries_of(link: Connection, index: Mapping[str, list[_Entry]]) -> list[_Entry]:
    found = [*index.get(ssh_name(link.address, link.port), ()), *index.get(_identity(link), ())]
    return list(dict.fromkeys(found))


def _others(cluster: Cluster, hosts: Sequence[str], entries: Sequence[_Entry]) -> list[_Entry]:
    index = _index(entries)
    gone = {entry for link in _links(cluster, hosts) for entry in _entries_of(link, index)}
    return [entry for entry in entries if entry not in gone]


def _given_key(link: Connection) -> _Entry | None:
    """Read `host_key`: the public key as in /etc/ssh/ssh_host_ed25519_key.pub, its comment left out."""
    words = link.host_key.split()
    return (
        _Entry((ssh_name(link.address, link.port),), words[0], words[1], f"{_identity(link)} {_FROM_INVENTORY}")
        if len(words) >= 2
        else None
    )


def _first_key(link: Connection) -> tuple[_Entry, Pin] | None:
    given = _given_key(link)
    if given:
        entry: _Entry | None = _Entry((_resolved_name(link),), given.key_type, given.key, given.comment)
    else:
        entry = _contact(link)
    if entry is None:
        return None
    source = "hosts.yaml" if given else "first contact"
    return entry, Pin(link.host, link.address, entry.key_type, fingerprint(entry.key), source)


def _route(link: Connection) -> list[str]:
    return [
        *(["-p", str(link.port)] if link.port != 22 else []),
        *(["-l", link.user] if link.user else []),
        *(["-i", str(Path(link.private_key_file).expanduser())] if link.private_key_file else []),
        *shlex.split(link.ssh_common_args),
        *shlex.split(link.ssh_extra_args),
    ]


def _contact(link: Connection) -> _Entry | None:
    """Let ssh shake hands with a host without logging in, and take the key that it writes down."""
    with tempfile.TemporaryDirectory(prefix="primus-key-") as folder:
        target = Path(folder) / "known_hosts"
        timeout = ["-o", f"ConnectTimeout={_CONTACT_TIMEOUT_S}"]
        command = ["ssh", *first_contact(target), *_NO_LOGIN, *timeout, *_route(link), link.address, "true"]
        with contextlib.suppress(TimeoutError):
            run_command(command, timeout_s=2 * _CONTACT_TIMEOUT_S)
        written = _read(target)
    return _Entry(written[0].names, written[0].key_type, written[0].key, _identity(link)) if written else None


def _resolved_name(link: Connection) -> str:
    """Return the name that ssh looks up for a host: its configuration files may turn the address into another.

    Raises:
        PlanError: ssh does not answer in time.
    """
    try:
        done = run_command(["ssh", "-G", *_route(link), link.address], timeout_s=_CONFIGURATION_TIMEOUT_S)
    except TimeoutError as error:
        fix = f"run `ssh -G {link.address}` by hand; a `Match exec` of ~/.ssh/config or /etc/ssh/ssh_config may hang"
        raise PlanError(f"{link.host}: the configuration of ssh gave no answer within {_CONFIGURATION_TIMEOUT_S} s", fix=fix) from error
    says = dict(line.split(" ", maxsplit=1) for line in done.stdout.splitlines() if " " in line)
    if alias := says.get("hostkeyalias"):
        return alias
    return ssh_name(says.get("hostname", link.address), int(says.get("port", link.port)))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with state_errors(PlanError, path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = stack.enter_context((path.parent / "known_hosts.lock").open("w", encoding="ascii"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_replaced(link: Connection, pinned: Sequence[_Entry]) -> bool:
    """Tell whether all pins of a host came from hosts.yaml, which has another key by now."""
    wanted = _given_key(link)
    if wanted is None or not pinned:
        return False
    return all(entry.comment == wanted.comment and entry.key != wanted.key for entry in pinned)


def _add(path: Path, new: Sequence[_Entry], gone: AbstractSet[_Entry]) -> None:
    with _locked(path):
        entries = [entry for entry in _read(path) if entry not in gone]
        _write(path, [*entries, *(entry for entry in new if entry not in entries)])


def _read(path: Path) -> list[_Entry]:
    """Read the file; a byte that is no UTF-8, in a comment of the user's say, is kept as it stands."""
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
