"""Replace etcd's data by a snapshot, in steps that all members run together: `etcd_restore.py SETTINGS.json STEP`.

    state      print this host's etcd and its status                        changes nothing
    evaluate   check that this snapshot may become this cluster's data      changes nothing
    stop_api   stop the API server and the programs that write through it
    stop       stop etcd
    restore    replace the data by the snapshot; the current data are moved aside
    start      start etcd
    check      check that etcd answers with the expected members and data
    start_api  start the API server and the other programs
    finish     remove the copy of the backup

Each step can be repeated, and running all steps again finishes an interrupted restore. Data are never deleted: the current data, also
those of an incomplete attempt, are moved aside. Further parameters come as JSON on standard input.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from etcd_backup import digest, fingerprints
from etcd_member import (
    Member,
    RefusedError,
    api_answers,
    call,
    find_member,
    health,
    inspect,
    moved_manifest,
    print_result,
    snapshot_program,
    wait_until,
)

# In the order in which they are started: the other two need the API server.
PODS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
RESTORE_S = 1800.0
# More revisions than a cluster writes during the life of a backup: 1,000 writes per second reach it in eleven days.
BUMP = 1_000_000_000


def minor(version: str) -> tuple[int, ...]:
    """Return the release series of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


def refusals(backup: dict[str, Any], found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Return why a snapshot must not become this cluster's data: one sentence per reason, each with its fix.

    Args:
        backup: The record of the snapshot (backup.json).
        found: From this host: the snapshot's `sha256`, `keys` and `revision`, `identity`, and `version` of the program that restores.
        wanted: `cluster`, `members` (name -> peer URLs), `ignore_identity`.
    """
    etcd: dict[str, Any] = backup.get("etcd") or {}
    reasons = []
    if backup.get("cluster") != wanted["cluster"]:
        reasons.append(f"it is of cluster {backup.get('cluster')}, and this is {wanted['cluster']}. Fix: name a backup of this cluster.")
    if found["sha256"] != etcd.get("sha256") or found["revision"] != etcd.get("revision"):
        reasons.append("it is damaged: its checksum or revision differs from the record. Fix: name another backup.")
    if minor(found["version"]) < minor(etcd.get("version", "0.0")):
        text = f"it was saved by etcd {etcd['version']}, and this host would restore it with {found['version']}"
        reasons.append(f"{text}. Fix: install that release of etcd on this host first.")
    other = [path for path, value in found["identity"].items() if backup.get("identity", {}).get(path, value) != value]
    if other and not wanted.get("ignore_identity"):
        text = f"{', '.join(other)} changed since the backup, so signed and encrypted data in it could not be read"
        reasons.append(
            f"{text}. Fix: unpack files.tar.gz of the backup over / first, or set kube_backup_restore_ignore_identity if the change is "
            "intended."
        )
    count = len(wanted["members"])
    if count % 2 == 0:
        reasons.append(f"etcd would have {count} members: an even number cannot keep quorum. Fix: give the group etcd 1, 3 or 5 hosts.")
    return reasons


def program_version(settings: dict[str, Any]) -> str:
    """Return the version of the program that restores."""
    words = call([snapshot_program(settings), "version"]).split()
    return next(word for word in words if word[:1].isdigit())


def can_bump(settings: dict[str, Any]) -> bool:
    """Return whether the program can continue with higher revisions than before, so that clients do not take old objects for new ones.

    https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster (read 2026-11); etcd 3.6 can.
    """
    return "--bump-revision" in call([snapshot_program(settings), "snapshot", "restore", "--help"])


def evaluate(settings: dict[str, Any], member: Member, wanted: dict[str, Any]) -> dict[str, Any]:
    """Check the snapshot on this host.

    Raises:
        RefusedError: It must not be restored on this host.
    """
    if not member.form:
        raise RefusedError("this host of group etcd runs no etcd. Fix: correct kube_backup_env_file or kube_backup_manifest_dir.")
    folder = Path(settings["incoming"])
    backup = json.loads((folder / "backup.json").read_text(encoding="utf-8"))
    found = inspect(settings, str(folder / "snapshot.db"))
    found |= {"sha256": digest(folder / "snapshot.db"), "identity": fingerprints(settings), "version": program_version(settings)}
    if reasons := refusals(backup, found, wanted):
        raise RefusedError("this snapshot cannot be restored: " + " And ".join(reasons))
    return {"snapshot": {name: found[name] for name in ("sha256", "revision", "keys")}, "bump": can_bump(settings)}


def runs(name: str) -> bool:
    """Return whether a program with this name runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().split(b"\0")[0].rsplit(b"/", 1)[-1] == name.encode():
                return True
    return False


def move_out(settings: dict[str, Any], name: str) -> bool:
    """Move a static pod's manifest out of kubelet's folder, which stops the pod; return whether it was there."""
    in_place, moved = Path(settings["manifest_dir"]) / f"{name}.yaml", moved_manifest(settings, name)
    if not in_place.is_file():
        return False
    moved.parent.mkdir(mode=0o700, exist_ok=True)
    in_place.rename(moved)
    return True


def move_in(settings: dict[str, Any], name: str) -> bool:
    """Move a static pod's manifest back; return whether it had been moved."""
    moved = moved_manifest(settings, name)
    if not moved.is_file():
        return False
    moved.rename(Path(settings["manifest_dir"]) / f"{name}.yaml")
    with suppress(OSError):  # other manifests may still be in it
        moved.parent.rmdir()
    return True


def stop_api(settings: dict[str, Any], _member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Stop the API server and the programs that write through it, and wait until none runs."""
    moved = [name for name in PODS if move_out(settings, name)]
    for name in PODS:
        if moved_manifest(settings, name).is_file():
            wait_until(lambda name=name: not runs(name), settings["wait_s"], f"{name} did not stop")  # type: ignore[misc]
    return {"changed": bool(moved), "moved": moved}


def data_in_use(data: Path) -> bool:
    """Return whether an etcd has the data open: it locks its file."""
    try:
        with (data / "member/snap/db").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def stop(settings: dict[str, Any], member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Stop etcd, and wait until no process has its data open."""
    if member.form == "systemd":
        call(["systemctl", "stop", settings["unit"]], limit_s=settings["wait_s"])
    else:
        move_out(settings, "etcd")
    wait_until(lambda: not data_in_use(Path(member.data_dir)), settings["wait_s"], "etcd did not stop")
    return {"changed": True}


def unused(folder: Path, name: str) -> Path:
    """Return a path in a folder that does not exist."""
    return next(path for number in range(1, 1000) if not (path := folder / (f"{name}-{number}" if number > 1 else name)).exists())


def restore(settings: dict[str, Any], member: Member, wanted: dict[str, Any]) -> dict[str, Any]:
    """Replace the data by the snapshot, within the data folder, which may be a separate file system."""
    data = Path(member.data_dir)
    if data_in_use(data):
        raise RefusedError("etcd runs. Fix: run the whole restore again.")
    data.mkdir(mode=0o700, parents=True, exist_ok=True)  # a replaced disk is empty
    draft, owner = data / "primus-restoring", data.stat()
    shutil.rmtree(draft, ignore_errors=True)
    members = ",".join(f"{name}={url}" for name, urls in sorted(wanted["members"].items()) for url in urls.split(","))
    words = ["--name", member.name, "--initial-cluster", members, "--initial-advertise-peer-urls", member.peer_urls]
    # Members that were not restored together must not form a cluster.
    words += ["--initial-cluster-token", f"primus-{wanted['token']}", "--data-dir", str(draft)]
    # The same on all members, else their data would differ.
    words += ["--bump-revision", str(BUMP), "--mark-compacted"] if wanted.get("bump") else []
    call([snapshot_program(settings), "snapshot", "restore", str(Path(settings["incoming"]) / "snapshot.db"), *words], limit_s=RESTORE_S)
    for path in (draft, *draft.rglob("*")):
        os.chown(path, owner.st_uid, owner.st_gid)
    aside = unused(data, "member.before-restore-" + time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    if (data / "member").exists():
        (data / "member").rename(aside)
    (draft / "member").rename(data / "member")
    shutil.rmtree(draft, ignore_errors=True)
    return {"changed": True, "aside": [str(path) for path in sorted(data.glob("member.before-restore-*"))]}


def start(settings: dict[str, Any], member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Start etcd without waiting, because it answers only when a majority has started."""
    if member.form == "systemd":
        call(["systemctl", "start", "--no-block", settings["unit"]])
        return {"changed": True}
    return {"changed": move_in(settings, "etcd")}


def check(settings: dict[str, Any], member: Member, wanted: dict[str, Any]) -> dict[str, Any]:
    """Wait until etcd answers with a leader, and check that its members and revision are those of the restore.

    Raises:
        RefusedError: It does not answer, or has other members or an older revision.
    """
    seen: dict[str, Any] = {}

    def answers() -> bool:
        with suppress(RefusedError):
            seen.update(health(settings, member))
        return bool(seen.get("leader"))

    wait_until(answers, settings["wait_s"], "etcd did not answer with a leader")
    if seen["members"] != wanted["members"]:
        raise RefusedError(f"etcd's members are {seen['members']}, and should be {wanted['members']}. Fix: run the same restore again.")
    if seen["revision"] < wanted["revision"]:
        raise RefusedError(
            f"etcd is at revision {seen['revision']}, the snapshot at {wanted['revision']}. Fix: run the same restore again."
        )
    return {"health": seen}


def start_api(settings: dict[str, Any], _member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Start the API server, wait until it is ready, then start the other programs."""
    moved = move_in(settings, PODS[0])
    if (Path(settings["manifest_dir"]) / f"{PODS[0]}.yaml").is_file():
        wait_until(lambda: api_answers(settings), settings["wait_s"], "the API server did not become ready")
    others = [name for name in PODS[1:] if move_in(settings, name)]
    return {"changed": moved or bool(others)}


def finish(settings: dict[str, Any], _member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Remove the copy of the backup."""
    shutil.rmtree(settings["incoming"], ignore_errors=True)
    return {"changed": True}


def state(settings: dict[str, Any], member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the member of this host and its health; an empty health if it does not answer."""
    if not member.form:
        return {"member": member.to_json(), "health": {}, "reason": "no etcd on this host"}
    try:
        return {"member": member.to_json(), "health": health(settings, member), "reason": ""}
    except RefusedError as error:
        return {"member": member.to_json(), "health": {}, "reason": str(error)}


STEPS = {step.__name__: step for step in (state, evaluate, stop_api, stop, restore, start, check, start_api, finish)}


def main() -> int:
    """Run one step and print its result."""
    os.umask(0o077)
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    wanted = json.loads("" if sys.stdin.isatty() else sys.stdin.read() or "{}")
    return print_result(lambda: {"changed": False, **STEPS[sys.argv[2]](settings, find_member(settings), wanted)})


if __name__ == "__main__":
    sys.exit(main())
