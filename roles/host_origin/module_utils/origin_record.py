# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""The record of a host's state before the first role changed it: written once to a folder of root, and read by a reset.

`None` always means that the record does not tell.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import stat
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ansible.module_utils.atomic_files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ansible.module_utils.reset_host import Host

SCHEMA = "primus.origin/1"
FOLDER = "/var/lib/primus/origin"
# Data, accounts and groups that an earlier reset kept. The file outlives the record, because they are not part of the original state.
KEPT = "/var/lib/primus/kept.json"
# If one of these exists, roles changed the host before the record was written, so its original state is unknown.
TRACES = ("/etc/primus", "/usr/local/lib/primus", "/etc/security/limits.d/90-primus.conf", "/etc/juicefs", "/etc/redis/client.env")
# Folders outside /etc whose content is listed, one level deep.
LISTED_FOLDERS = (
    *("/", "/home", "/mnt", "/opt", "/srv", "/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/local/sbin"),
    *("/var/backups", "/var/cache", "/var/lib", "/var/log", "/var/spool"),
)
# Secrets that no role replaces; a copy would only be one more place that can leak them.
NOT_COPIED = ("/etc/shadow", "/etc/gshadow", "/etc/ssh/ssh_host_", "/etc/ssl/private/")
LARGEST_COPY_BYTES = 1 << 20
# UID_MIN of login.defs(5) in all supported distributions.
FIRST_LOGIN_UID = 1000
# An automount, and files with side effects when read.
NOT_READ = ("/proc/sys/fs/binfmt_misc", "/proc/sys/vm/stat_refresh", "/proc/sys/kernel/random")
KERNEL_FILES = ("/sys/kernel/mm/transparent_hugepage/enabled", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor")
FAMILIES = {
    "/usr/bin/dpkg-query": ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n"],
    "/usr/bin/rpm": ["rpm", "--query", "--all", "--queryformat", "installed %{NAME}\n"],
}


class Origin(NamedTuple):
    """The record; `complete` is false if roles had changed the host before."""

    complete: bool
    packages: frozenset[str]
    units: Mapping[str, tuple[str, str]]  # name: (state of its file, active state)
    accounts: Mapping[str, str]  # name: line of /etc/passwd
    groups: Mapping[str, str]  # name: line of /etc/group
    kernel: Mapping[str, str]  # path below /proc/sys or /sys: text
    swap: bool
    names: Mapping[str, frozenset[str]]  # folder: names in it

    def existed(self, path: str) -> bool | None:
        """Return whether a path existed, or None if the record does not tell."""
        if not self.complete:
            return None
        parent, name = os.path.split(path.rstrip("/"))
        if parent in self.names:
            return name in self.names[parent]
        if parent in ("", "/"):
            return None
        above = self.existed(parent)
        return False if above is False else None


def empty(*, complete: bool = False) -> Origin:
    """Return a record without content."""
    return Origin(complete, frozenset(), {}, {}, {}, {}, swap=False, names={})


def load(host: Host) -> Origin:
    """Return the record of this host, or an empty incomplete one if there is none."""
    text = host.read(f"{FOLDER}/origin.json")
    if not text:
        return empty()
    found = json.loads(text)
    units = {name: (states[0], states[1]) for name, states in found["units"].items()}
    names = {folder: frozenset(inside) for folder, inside in found["names"].items()}
    packages = frozenset(found["packages"])
    lines = (found["accounts"], found["groups"])
    return Origin(found["complete"], packages, units, *lines, found["kernel"], swap=found["swap"], names=names)


def record(host: Host) -> bool:
    """Write the record unless there is one; return whether it was written. It is renamed into place when complete."""
    target = host.at(FOLDER)
    if (target / "origin.json").exists():
        return False
    if host.check:
        return True
    host.at("/var/lib/primus").mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = target.with_name(".origin-new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    document = read_state(host)
    _copy(host, fresh / "files.tar", document)
    _write_json(fresh / "origin.json", document)
    fresh.replace(target)
    return True


def read_state(host: Host) -> dict[str, Any]:
    """Return the state of the host as JSON data for the record."""
    kept = load_kept(host)
    accounts, groups = entries(host, "passwd"), entries(host, "group")
    homes = [path for home in login_homes(accounts.values()) for path in (home, f"{home}/.ssh")]
    names = {
        folder: inside for folder in (*LISTED_FOLDERS, *homes, *_folders(host, "/etc")) if (inside := _names(host, folder)) is not None
    }
    for path in kept["data"]:
        parent, name = os.path.split(path)
        names[parent] = [known for known in names.get(parent, []) if known != name]
    return {
        "schema": SCHEMA,
        "complete": not any(host.exists(path) for path in TRACES),
        "packages": sorted(installed_packages(host)),
        "units": unit_states(host),
        "accounts": {name: line for name, line in accounts.items() if name not in kept["accounts"]},
        "groups": {name: line for name, line in groups.items() if name not in kept["groups"]},
        "kernel": dict(_kernel_values(host)),
        "swap": len(host.read("/proc/swaps").splitlines()) > 1,
        "names": names,
    }


def load_kept(host: Host) -> dict[str, list[str]]:
    """Return paths of data, accounts and groups that an earlier reset kept."""
    text = host.read(KEPT)
    return {"data": [], "accounts": [], "groups": [], **(json.loads(text) if text else {})}


def add_kept(host: Host, kind: str, names: Iterable[str]) -> None:
    """Record what this reset keeps."""
    kept = load_kept(host)
    new = sorted({*kept[kind], *names})
    if host.check or new == kept[kind]:
        return
    host.at(KEPT).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _write_json(host.at(KEPT), {**kept, kind: new})


def drop_kept(host: Host, kind: str, name: str) -> None:
    """Remove an entry that does not exist any more."""
    kept = load_kept(host)
    if host.check or name not in kept[kind]:
        return
    _write_json(host.at(KEPT), {**kept, kind: [item for item in kept[kind] if item != name]})


def copied(host: Host, path: str) -> tuple[tarfile.TarInfo, bytes] | None:
    """Return a file from the record, with owner and mode, or None if there is no copy."""
    try:
        with tarfile.open(host.at(f"{FOLDER}/files.tar")) as archive:
            info = archive.getmember(path.lstrip("/"))
            stream = archive.extractfile(info) if info.isreg() else None
            return info, stream.read() if stream else b""
    except (FileNotFoundError, KeyError):
        return None


def installed_packages(host: Host) -> frozenset[str]:
    """Return the names of the packages that are installed."""
    query = next((argv for program, argv in FAMILIES.items() if host.at(program).exists()), None)
    lines = host.run(query)[1].splitlines() if query else []
    return frozenset(line.split(" ", 1)[1] for line in lines if line.startswith("installed "))


def unit_states(host: Host) -> dict[str, tuple[str, str]]:
    """Return the state of its file and the active state, for every unit."""
    _, files = host.run(["systemctl", "list-unit-files", "--no-legend", "--plain", "--no-pager"])
    _, units = host.run(["systemctl", "list-units", "--all", "--no-legend", "--plain", "--no-pager", "--type=service,socket,target,timer"])
    rows = [line.split() for line in units.splitlines()]
    active = {row[0]: row[2] for row in rows if len(row) > 2}
    found = {row[0]: (row[1], active.get(row[0], "inactive")) for row in map(str.split, files.splitlines()) if len(row) > 1}
    return {**{name: ("", state) for name, state in active.items()}, **found}


def entries(host: Host, database: str) -> dict[str, str]:
    """Return the lines of /etc/passwd or /etc/group by name."""
    return {line.split(":", 1)[0]: line for line in host.read(f"/etc/{database}").splitlines() if ":" in line}


def login_homes(lines: Iterable[str]) -> list[str]:
    """Return the home folders of root and of login accounts, from lines of /etc/passwd."""
    fields = [line.split(":") for line in lines]
    homes = {row[5].rstrip("/") for row in fields if row[2] == "0" or int(row[2]) >= FIRST_LOGIN_UID}
    return sorted(home for home in homes if home)


def _names(host: Host, folder: str) -> list[str] | None:
    try:
        return sorted(path.name for path in host.at(folder).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _folders(host: Host, top: str) -> Iterator[str]:
    for path, _, _ in os.walk(host.at(top)):
        yield "/" + os.path.relpath(path, host.root)


def _kernel_values(host: Host) -> Iterator[tuple[str, str]]:
    found = [Path(path) for pattern in KERNEL_FILES for path in glob.glob(str(host.at(pattern)))]  # noqa: PTH207 - absolute patterns
    skipped = tuple(str(host.at(path)) for path in NOT_READ)
    for folder, inner, files in os.walk(host.at("/proc/sys")):
        inner[:] = [name for name in inner if not f"{folder}/{name}".startswith(skipped)]
        found += [Path(folder, name) for name in files if not f"{folder}/{name}".startswith(skipped)]
    for path in found:
        try:
            if path.stat().st_mode & stat.S_IRUSR:
                yield "/" + os.path.relpath(path, host.root), path.read_text("utf-8", "replace").strip()
        except OSError:
            continue


def _copy(host: Host, target: Path, document: Mapping[str, Any]) -> None:
    """Archive the files that roles can replace: /etc and the authorized_keys files."""
    keys = [f"{home}/.ssh/authorized_keys" for home in login_homes(document["accounts"].values())]
    inside = [f"{folder}/{name}" for folder, names in document["names"].items() if f"{folder}/".startswith("/etc/") for name in names]
    with tarfile.open(target, "w") as archive:
        target.chmod(0o600)
        for path in dict.fromkeys([*inside, *keys]):
            source = host.at(path)
            if path.startswith(NOT_COPIED) or not os.path.lexists(source):
                continue
            info = source.lstat()
            if stat.S_ISLNK(info.st_mode) or (stat.S_ISREG(info.st_mode) and info.st_size <= LARGEST_COPY_BYTES):
                archive.add(source, arcname=path.lstrip("/"), recursive=False)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(value, indent=1, sort_keys=True) + "\n", mode=0o600)
