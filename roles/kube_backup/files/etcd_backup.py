"""Back up what is needed to restore a Kubernetes cluster: etcd's data, the PKI and the encryption key of secrets.

`etcd_backup.py SETTINGS.json` writes one folder, completely or not at all, and prints one line of JSON. A timer and the role run it.
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

from etcd_member import Member, RefusedError, etcdctl, find_member, health, inspect, print_result

SCHEMA = "primus.etcd-backup/1"
# A snapshot of a large cluster (8 GiB) over a busy disk.
SAVE_S = 1800.0


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    checksum = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            checksum.update(part)
    return checksum.hexdigest()


def existing_paths(patterns: list[str]) -> list[Path]:
    """Return the existing files and folders, each once, sorted."""
    found = {path for pattern in patterns for path in Path("/").glob(pattern.lstrip("/"))}
    return sorted(found)


def fingerprints(settings: dict[str, Any]) -> dict[str, str]:
    """Return the checksums of the files that identify the cluster: the CA's certificates and the file with the encryption key."""
    return {str(path): digest(path) for path in existing_paths(settings["identity"]) if path.is_file()}


def pack(folder: Path, settings: dict[str, Any]) -> int:
    """Pack PKI, encryption configuration and manifests into one archive; return its number of files."""
    with tarfile.open(folder / "files.tar.gz", "w:gz") as archive:
        for path in existing_paths(settings["files"]):
            archive.add(path, arcname=str(path).lstrip("/"))
        count = len([one for one in archive.getmembers() if one.isfile()])
    (folder / "files.tar.gz").chmod(0o600)
    return count


def save(folder: Path, settings: dict[str, Any], member: Member) -> dict[str, Any]:
    """Save a snapshot of etcd and read it back.

    Raises:
        RefusedError: The member has errors, or the snapshot cannot be read completely.
    """
    before = health(settings, member)
    if before["errors"]:
        raise RefusedError(
            f"etcd reports {before['errors']}. Fix: check `etcdctl alarm list`; a full quota needs compaction and defragmentation."
        )
    snapshot = folder / "snapshot.db"
    etcdctl(settings, member, "snapshot", "save", str(snapshot), limit_s=SAVE_S)
    snapshot.chmod(0o600)
    # Its revision is that of the newest key. It is lower than the member's if nothing was written yet or the last deletion was compacted.
    found = inspect(settings, str(snapshot))
    return {**before, **found, "sha256": digest(snapshot), "bytes": snapshot.stat().st_size}


def surplus(names: list[str], keep: int) -> list[str]:
    """Return the backups to remove: all but the newest `keep`."""
    return sorted((name for name in names if re.fullmatch(r"etcd-\d{8}T\d{6}Z", name)), reverse=True)[keep:]


def shrunk(keys: int, earlier: list[int]) -> bool:
    """Return whether etcd has less than half the keys of an earlier backup: backups of an emptied etcd must not replace full ones."""
    return bool(earlier) and keys * 2 < max(earlier)


def earlier_keys(folder: Path) -> list[int]:
    """Return the number of keys in each backup of a folder."""
    found = []
    for path in folder.glob("etcd-*/backup.json"):
        try:
            found.append(int((json.loads(path.read_text(encoding="utf-8")).get("etcd") or {}).get("keys", 0)))
        except (OSError, ValueError):
            continue  # a damaged backup has no number
    return found


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take(settings: dict[str, Any]) -> dict[str, Any]:
    """Take one backup; return its record.

    Raises:
        RefusedError: The host has an etcd, and its snapshot failed or has far fewer keys than before.
    """
    root = Path(settings["folder"])
    new, stamp = root / ".new", time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    try:
        member = find_member(settings)
        etcd = {"member": member.name, **save(new, settings, member)} if member.form else None
        count = pack(new, settings)
        record = {"schema": SCHEMA, "cluster": settings["cluster"], "host": settings["host"], "taken": stamp, "etcd": etcd, "files": count}
        record["identity"] = fingerprints(settings)
        (new / "backup.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
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
            f"written to etcd-{stamp}, but etcd has {etcd['keys']} keys and had {max(earlier)}: no earlier backup is removed. "
            f"Fix: check whether data was lost; if not, remove the larger backups in {root}."
        )
    for name in surplus([path.name for path in root.iterdir()], int(settings["keep"])):
        shutil.rmtree(root / name)
    return {**record, "folder": str(root / f"etcd-{stamp}")}


def main() -> int:
    """Take a backup while holding the folder's lock."""
    os.umask(0o077)
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(settings["folder"]).mkdir(mode=0o700, parents=True, exist_ok=True)
    with Path(settings["folder"], ".lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return print_result(lambda: take(settings))


if __name__ == "__main__":
    sys.exit(main())
