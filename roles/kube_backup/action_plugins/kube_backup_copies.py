"""Manage the copies of backups on the controller: the Ansible action `kube_backup_copies`. It contacts no host.

Own plugin: `keep` names a copy only after its checksum was compared, so that an interrupted copy never replaces a complete one.

begin   create an empty folder `.new` for the files
keep    compare the files with the checksums of the host, rename the folder, and remove the oldest copies
find    return the newest complete copy, or the one that is named
"""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

_NAME = re.compile(r"etcd-\d{8}T\d{6}Z")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def backup_in(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the host folder with etcd's snapshot, and its backup.json; None if the copy has no snapshot."""
    for path in sorted([*folder.glob("backup.json"), *folder.glob("*/backup.json")]):
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.get("etcd") and (path.parent / "snapshot.db").is_file():
            return path.parent, record
    return None


def begin(folder: Path) -> Path:
    """Create an empty folder that only its owner can read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = folder / ".new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    return new


def keep(folder: Path, count: int) -> Path:
    """Check the copied files, give the folder its final name, and remove the oldest copies.

    Raises:
        ValueError: The snapshot differs from the one on the host.
    """
    new = folder / ".new"
    found = backup_in(new)
    if not found:
        raise ValueError(f"{new} has no snapshot of etcd. Fix: run the backup again")
    path, record = found
    if digest(path / "snapshot.db") != record["etcd"]["sha256"]:
        raise ValueError(
            f"{path}/snapshot.db differs from the file on {record['host']}. Fix: check whether the disk is full, then run the backup again"
        )
    for one in new.rglob("*"):
        one.chmod(0o700 if one.is_dir() else 0o600)
    named = folder / f"etcd-{record['taken']}"
    shutil.rmtree(named, ignore_errors=True)
    new.rename(named)
    for name in surplus([one.name for one in folder.iterdir()], count):
        shutil.rmtree(folder / name)
    return named


def surplus(names: list[str], count: int) -> list[str]:
    """Return the copies to remove: all but the newest `count`. Other names are never removed."""
    return sorted((name for name in names if _NAME.fullmatch(name)), reverse=True)[count:]


def find(folder: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return the named backup, or the newest one.

    Raises:
        ValueError: It does not exist, or has no snapshot of etcd.
    """
    if name:
        path = Path(name) if "/" in name else folder / name
        if found := backup_in(path) if path.is_dir() else None:
            return found
        raise ValueError(f"{path} is no backup of etcd: no backup.json with a snapshot.db beside it. Fix: choose from {_available(folder)}")
    for one in sorted((path for path in folder.glob("etcd-*") if _NAME.fullmatch(path.name)), reverse=True):
        if found := backup_in(one):
            return found
    raise ValueError(
        f"no backup of etcd in {folder}. Fix: run `primus-bootstrap backup etcd`, or name a folder that was copied from a host"
    )


def _available(folder: Path) -> str:
    names = sorted((path.name for path in folder.glob("etcd-*") if _NAME.fullmatch(path.name)), reverse=True)
    return ", ".join(names[:5]) or f"the copies of `primus-bootstrap backup etcd` in {folder}"


class ActionModule(ActionBase):
    """`step` is begin, keep or find."""

    _VALID_ARGS = frozenset({"step", "folder", "name", "keep"})
    _supports_check_mode = False

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do one step."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        folder = Path(args["folder"]).expanduser()
        try:
            if args["step"] == "find":
                path, record = find(folder, str(args.get("name") or ""))
                return {**result, "changed": False, "path": str(path.absolute()), "backup": record}
            path = begin(folder) if args["step"] == "begin" else keep(folder, int(args["keep"]))
        except (OSError, ValueError) as error:
            raise AnsibleActionFail(f"{error}.") from error
        return {**result, "changed": args["step"] == "keep", "path": str(path)}
