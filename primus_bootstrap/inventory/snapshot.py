"""Copy hosts.yaml and its variable files for a run, so that later edits do not affect it.

The inventory plugin `plugins/primus_snapshot.py` reads the copy. It sets `inventory_dir` to the folder of the original, so that
relative paths in variables (certificates, generated secrets, the state folder) still work. Encrypted files stay encrypted.
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
# The file beside a copy of hosts.yaml with the absolute path of the original. The plugin reads it too.
_SOURCE = ".primus-source"
_HOSTS = ""  # the key of hosts.yaml in the result of `file_sums`; the file may have another name


def plugin_settings(*others: str) -> dict[str, str]:
    """Return the environment variables with which Ansible reads snapshots, and inventories of other plugins."""
    return {"ANSIBLE_INVENTORY_PLUGINS": str(Path(__file__).with_name("plugins")), "ANSIBLE_INVENTORY_ENABLED": ",".join((PLUGIN, *others))}


def file_sums(hosts: Path) -> dict[str, str]:
    """Return the SHA-256 of hosts.yaml (key: the empty string) and of each variable file (key: its path from that folder).

    A file that cannot be read has an empty sum; the parser reports it.
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
    """Copy hosts.yaml and its variable files into a new folder with mode 0700; return the copy of hosts.yaml.

    Args:
        hosts: The original.
        folder: The folder of the copy; it must not exist.
        sums: The result of `file_sums` when the files were validated. If empty, the files are not compared.

    Raises:
        PlanError: A file was changed after it was validated, or cannot be read.
        OSError: The copy cannot be written.
    """
    folder.mkdir(mode=0o700)
    copied = {}
    for name, path in _files(hosts).items():
        try:
            data = path.read_bytes()
        except OSError as error:
            fix = f"chmod u+r {path}; if the file was just replaced, run the same command again"
            raise PlanError(f"{path} cannot be read: {error.strerror}", fix=fix) from error
        copied[name] = hashlib.sha256(data).hexdigest()
        _write(folder / (name or hosts.name), data)
    if sums and (changed := sorted(name for name in {*sums, *copied} if sums.get(name) != copied.get(name))):
        path = hosts.parent / (changed[0] or hosts.name)
        raise PlanError(f"{path} was changed after it was checked", fix="run the same command again")
    _write(folder / _SOURCE, os.fsencode(hosts.absolute()))
    return folder / hosts.name


def _write(path: Path, data: bytes) -> None:
    for folder in reversed(path.parents):  # `parents=True` would set the mode of only the last folder
        folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def source_of(hosts: Path) -> Path | None:
    """Return the original of a copied hosts.yaml; None if the file is not a copy."""
    try:
        return Path(os.fsdecode(hosts.with_name(_SOURCE).read_bytes()))
    except OSError:
        return None
