"""A copy of hosts.yaml and its variable files, so that a run works on one state of them from start to end.

The copy means the original: `inventory_dir` stays the folder of the original, so the files that variables name (certificates,
generated secrets, the state folder) are read and written there. An inventory plugin of ours (`plugins/primus_snapshot.py`)
tells this to Ansible. Files under Vault are copied as they are, encrypted.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.source.variable_files import variable_paths

if TYPE_CHECKING:
    from collections.abc import Mapping

PLUGIN = "primus_snapshot"
# The file beside a copy of hosts.yaml that holds the absolute path of the original; the plugin reads it too.
_SOURCE = ".primus-source"
_HOSTS = ""  # hosts.yaml in the result of `file_sums`, whatever its name


def plugin_settings(*others: str) -> dict[str, str]:
    """Return the environment in which Ansible reads snapshots, and inventories of the plugins `others`."""
    return {"ANSIBLE_INVENTORY_PLUGINS": str(Path(__file__).with_name("plugins")), "ANSIBLE_INVENTORY_ENABLED": ",".join((PLUGIN, *others))}


def file_sums(hosts: Path) -> dict[str, str]:
    """Return the SHA-256 of hosts.yaml (key: the empty string) and of each variable file (key: its path from that folder).

    A file that cannot be read has an empty sum: what is wrong with it is reported where it is parsed.
    """
    sums = {}
    for name, path in _files(hosts).items():
        try:
            sums[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            sums[name] = ""
    return sums


def _files(hosts: Path) -> dict[str, Path]:
    try:
        variables = variable_paths(hosts.parent)
    except OSError:
        variables = ()
    return {_HOSTS: hosts, **{str(path.relative_to(hosts.parent)): path for path in variables}}


def take_snapshot(hosts: Path, folder: Path, sums: Mapping[str, str]) -> Path:
    """Copy hosts.yaml and its variable files into a new folder that only this user can read; return the copy of hosts.yaml.

    Args:
        hosts: the original.
        folder: the folder of the copy; there must be none of that name.
        sums: what `file_sums` returned when the files were validated; not compared where empty.

    Raises:
        PlanError: the files are not those that were validated.
        OSError: the copy cannot be written.
    """
    folder.mkdir(mode=0o700)
    copied = {}
    for name, path in _files(hosts).items():
        try:
            data = path.read_bytes()
        except OSError as error:
            fix = "make the file readable, or repeat the command if it was just replaced"
            raise PlanError(f"{path} cannot be read: {error.strerror}", fix=fix) from error
        copied[name] = hashlib.sha256(data).hexdigest()
        _write(folder / (name or hosts.name), data)
    if sums and (changed := sorted(name for name in {*sums, *copied} if sums.get(name) != copied.get(name))):
        path = hosts.parent / (changed[0] or hosts.name)
        raise PlanError(f"{path} was changed after it was checked", fix="run the same command again: it reads the file anew")
    _write(folder / _SOURCE, os.fsencode(hosts.absolute()))
    return folder / hosts.name


def _write(path: Path, data: bytes) -> None:
    for folder in reversed(path.parents):  # not `parents=True`, which gives the mode to the last folder alone
        folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def source_of(hosts: Path) -> Path | None:
    """Return the original of a hosts.yaml that is a snapshot's; None for any other."""
    try:
        return Path(os.fsdecode(hosts.with_name(_SOURCE).read_bytes()))
    except OSError:
        return None
