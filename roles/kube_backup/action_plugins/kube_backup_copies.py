"""The copies of backups on the controller: the Ansible action `kube_backup_copies`. It contacts no host.

begin   have an empty folder `.new`, into which a run fetches
keep    check what was fetched against the sums that the host wrote, give it its name, and let the oldest go
find    the newest whole copy, or the one that is named
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
    made = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            made.update(part)
    return made.hexdigest()


def backup_in(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the part of a copy that holds etcd's data, and what was written down with it; None where there is none."""
    for path in sorted([*folder.glob("backup.json"), *folder.glob("*/backup.json")]):
        said = json.loads(path.read_text(encoding="utf-8"))
        if said.get("etcd") and (path.parent / "snapshot.db").is_file():
            return path.parent, said
    return None


def begin(folder: Path) -> Path:
    """Have an empty folder that only its owner can read."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = folder / ".new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    return new


def keep(folder: Path, count: int) -> Path:
    """Give what was fetched its name, and let the oldest go.

    Raises:
        ValueError: It is not what the host wrote.
    """
    new = folder / ".new"
    found = backup_in(new)
    if not found:
        raise ValueError(f"{new} holds no snapshot of etcd. Fix: run the backup again")
    path, said = found
    if digest(path / "snapshot.db") != said["etcd"]["sha256"]:
        raise ValueError(
            f"{path}/snapshot.db is not what {said['host']} wrote. Fix: see whether the disk is full, then run the backup again"
        )
    for one in new.rglob("*"):
        one.chmod(0o700 if one.is_dir() else 0o600)
    named = folder / f"etcd-{said['taken']}"
    shutil.rmtree(named, ignore_errors=True)
    new.rename(named)
    for name in surplus([one.name for one in folder.iterdir()], count):
        shutil.rmtree(folder / name)
    return named


def surplus(names: list[str], count: int) -> list[str]:
    """Return the copies that are to go: all but the newest ones. What is not a copy's name is not ours."""
    return sorted((name for name in names if _NAME.fullmatch(name)), reverse=True)[count:]


def find(folder: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Return the backup that is meant, the newest where none is named.

    Raises:
        ValueError: It is not there, or holds no data of etcd.
    """
    if name:
        meant = Path(name) if "/" in name else folder / name
        if found := backup_in(meant) if meant.is_dir() else None:
            return found
        raise ValueError(f"{meant} is no backup of etcd: no backup.json with a snapshot.db beside it. Fix: choose from {_listed(folder)}")
    for one in sorted((path for path in folder.glob("etcd-*") if _NAME.fullmatch(path.name)), reverse=True):
        if found := backup_in(one):
            return found
    raise ValueError(f"no backup of etcd in {folder}. Fix: `backup etcd`, or name a folder that was copied from a host")


def _listed(folder: Path) -> str:
    names = sorted((path.name for path in folder.glob("etcd-*") if _NAME.fullmatch(path.name)), reverse=True)
    return ", ".join(names[:5]) or f"what `backup etcd` puts into {folder}"


class ActionModule(ActionBase):
    """Contacts no host."""

    _VALID_ARGS = frozenset({"step", "folder", "name", "keep"})
    _supports_check_mode = False

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Do one step."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        folder = Path(args["folder"]).expanduser()
        try:
            if args["step"] == "find":
                path, said = find(folder, str(args.get("name") or ""))
                return {**result, "changed": False, "path": str(path.absolute()), "backup": said}
            path = begin(folder) if args["step"] == "begin" else keep(folder, int(args["keep"]))
        except (OSError, ValueError) as error:
            raise AnsibleActionFail(f"{error}.") from error
        return {**result, "changed": args["step"] == "keep", "path": str(path)}
