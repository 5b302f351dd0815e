"""Take a backup of what a Kubernetes cluster cannot be made again without: etcd's data, the PKI, the key that secrets are encrypted with.

`etcd_backup.py SETTINGS.json` writes one folder, whole or not at all, and prints one line of JSON. A timer runs it, and so does the role.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from etcd_member import Member, RefusedError, ask, find_member, health, inspect

SCHEMA = "primus.etcd-backup/1"
# A snapshot of a large cluster (8 GiB) over a busy disk.
SAVE_S = 1800.0


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    made = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            made.update(part)
    return made.hexdigest()


def present(patterns: list[str]) -> list[Path]:
    """Return the files and folders that are there, once each, in order."""
    found = {path for pattern in patterns for path in Path("/").glob(pattern.lstrip("/"))}
    return sorted(found)


def fingerprints(settings: dict[str, Any]) -> dict[str, str]:
    """Return what tells one cluster's secrets from another's: sums of the authority's certificate and of the encryption key's file."""
    return {str(path): digest(path) for path in present(settings["identity"]) if path.is_file()}


def pack(folder: Path, settings: dict[str, Any]) -> int:
    """Pack PKI, encryption configuration and manifests into one file; return how many files it holds."""
    with tarfile.open(folder / "files.tar.gz", "w:gz") as archive:
        for path in present(settings["files"]):
            archive.add(path, arcname=str(path).lstrip("/"))
        count = len([one for one in archive.getmembers() if one.isfile()])
    (folder / "files.tar.gz").chmod(0o600)
    return count


def save(folder: Path, settings: dict[str, Any], member: Member) -> dict[str, Any]:
    """Save etcd's data and check them.

    Raises:
        RefusedError: The member is not well, or the snapshot cannot be read to its end.
    """
    before = health(settings, member)
    if before["errors"]:
        raise RefusedError(
            f"etcd reports {before['errors']}. Fix: see `etcdctl alarm list`; a full quota needs compaction and defragmentation."
        )
    snapshot = folder / "snapshot.db"
    ask(settings, member, "snapshot", "save", str(snapshot), limit_s=SAVE_S)
    snapshot.chmod(0o600)
    # Its revision is that of the newest key: behind the member's own where nothing was written yet, or the last deletion is compacted.
    found = inspect(settings, str(snapshot))
    return {**before, **found, "sha256": digest(snapshot), "bytes": snapshot.stat().st_size}


def surplus(names: list[str], keep: int) -> list[str]:
    """Return the backups that are to go: all but the newest ones."""
    return sorted((name for name in names if re.fullmatch(r"etcd-\d{8}T\d{6}Z", name)), reverse=True)[keep:]


def shrunk(keys: int, earlier: list[int]) -> bool:
    """Tell whether etcd holds less than half the keys that it once held: backups of an emptied one must not push out the full ones."""
    return bool(earlier) and keys * 2 < max(earlier)


def earlier_keys(folder: Path) -> list[int]:
    """Return how many keys the backups of a folder hold."""
    found = []
    for path in folder.glob("etcd-*/backup.json"):
        try:
            found.append(int((json.loads(path.read_text(encoding="utf-8")).get("etcd") or {}).get("keys", 0)))
        except (OSError, ValueError):
            continue  # one that cannot be read says nothing
    return found


def sync(path: Path) -> None:
    """Have a file or folder on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take(settings: dict[str, Any]) -> dict[str, Any]:
    """Take one backup; return what is written down with it.

    Raises:
        RefusedError: etcd is there and gives no good snapshot.
    """
    root = Path(settings["folder"])
    new, stamp = root / ".new", time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    try:
        member = find_member(settings)
        etcd = {"member": member.name, **save(new, settings, member)} if member.form else None
        count = pack(new, settings)
        made = {"schema": SCHEMA, "cluster": settings["cluster"], "host": settings["host"], "taken": stamp, "etcd": etcd, "files": count}
        made["identity"] = fingerprints(settings)
        (new / "backup.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        (new / "backup.json").chmod(0o600)
        for path in (*new.iterdir(), new):
            sync(path)
        earlier = earlier_keys(root)
        new.rename(root / f"etcd-{stamp}")
        sync(root)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    if etcd and shrunk(etcd["keys"], earlier):
        raise RefusedError(
            f"written to etcd-{stamp}, but etcd holds {etcd['keys']} keys and held {max(earlier)}: no earlier backup is removed. "
            f"Fix: look what became of the data; where that is right, remove the larger ones in {root}."
        )
    for name in surplus([path.name for path in root.iterdir()], int(settings["keep"])):
        shutil.rmtree(root / name)
    return {**made, "folder": str(root / f"etcd-{stamp}")}


def main() -> int:
    """Take a backup under the folder's lock."""
    os.umask(0o077)
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(settings["folder"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    with Path(settings["folder"], ".lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            print(json.dumps(take(settings)))
        except (RefusedError, OSError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
