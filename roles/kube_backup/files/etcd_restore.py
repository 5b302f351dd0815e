"""Put a snapshot in place of etcd's data, in steps that every member of the cluster does together: `etcd_restore.py SETTINGS.json STEP`.

    look     what etcd this host runs, and what it says of itself          changes nothing
    judge    whether this snapshot may become this cluster's data          changes nothing
    hold     take the API server, and what writes through it, out of service
    stop     stop etcd
    restore  put the snapshot in place; what was there is set aside
    start    start etcd
    check    whether it answers, with the members and the data that it should have
    release  put the API server back into service
    finish   remove the copy of the backup

Each step is safe to repeat, and a restore that was killed is finished by doing it all again. Data are never removed: what is in
place is set aside, the half of an earlier try too. Further words come as JSON on the standard input.
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
from etcd_member import Member, RefusedError, api_answers, call, find_member, health, held, inspect, snapshot_program, wait_until

# In the order in which they are put back: without the API server the other two only fail.
PODS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
RESTORE_S = 1800.0
# More than a cluster writes in the life of a backup: 1,000 writes a second make that many in eleven days.
BUMP = 1_000_000_000


def minor(version: str) -> tuple[int, ...]:
    """Return the release series of a version."""
    return tuple(int(part) for part in version.split(".")[:2])


def refusals(backup: dict[str, Any], found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Return why a snapshot must not become this cluster's data: one sentence a reason, each with its fix.

    Args:
        backup: what was written down with the snapshot (backup.json).
        found: of this host: the snapshot's `sha256`, `keys` and `revision` as read now, `identity`, `version` of the program that restores.
        wanted: `cluster`, `members` (name to peer addresses), `despite_identity`.
    """
    etcd, said = backup.get("etcd") or {}, []
    if backup.get("cluster") != wanted["cluster"]:
        said.append(f"it is of cluster {backup.get('cluster')}, and this is {wanted['cluster']}. Fix: name a backup of this cluster.")
    if found["sha256"] != etcd.get("sha256") or found["revision"] != etcd.get("revision"):
        said.append("it is not what was saved: its sum or revision differs. Fix: name another backup; this one is damaged.")
    if minor(found["version"]) < minor(etcd.get("version", "0.0")):
        text = f"it was saved by etcd {etcd['version']}, and this host would restore it with {found['version']}"
        said.append(f"{text}. Fix: install that release of etcd here first.")
    other = [path for path, value in found["identity"].items() if backup.get("identity", {}).get(path, value) != value]
    if other and not wanted.get("despite_identity"):
        text = f"{', '.join(other)} differs from what the backup was taken with, so what is signed or encrypted in it could not be read"
        said.append(
            f"{text}. Fix: unpack files.tar.gz of the backup over / first, or kube_backup_restore_despite_identity where you know why."
        )
    count = len(wanted["members"])
    if count % 2 == 0:
        said.append(f"etcd would have {count} members: an even number cannot keep quorum. Fix: give the group etcd 1, 3 or 5 hosts.")
    return said


def program_version(settings: dict[str, Any]) -> str:
    """Return the version of the program that restores."""
    words = call([snapshot_program(settings), "version"]).split()
    return next(word for word in words if word[:1].isdigit())


def can_bump(settings: dict[str, Any]) -> bool:
    """Tell whether the program can let revisions go on above the former ones, so that no client takes old objects for news of today.

    https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster (read 2026-11); etcd 3.6 can.
    """
    return "--bump-revision" in call([snapshot_program(settings), "snapshot", "restore", "--help"])


def judge(settings: dict[str, Any], member: Member, wanted: dict[str, Any]) -> dict[str, Any]:
    """Judge the snapshot that lies on this host.

    Raises:
        RefusedError: It must not be restored here.
    """
    if not member.form:
        raise RefusedError("this host of group etcd runs no etcd. Fix: see kube_backup_env_file and kube_backup_manifest_dir.")
    folder = Path(settings["incoming"])
    backup = json.loads((folder / "backup.json").read_text(encoding="utf-8"))
    found = inspect(settings, str(folder / "snapshot.db"))
    found |= {"sha256": digest(folder / "snapshot.db"), "identity": fingerprints(settings), "version": program_version(settings)}
    if said := refusals(backup, found, wanted):
        raise RefusedError("this snapshot cannot be restored: " + " And ".join(said))
    return {"snapshot": {name: found[name] for name in ("sha256", "revision", "keys")}, "bump": can_bump(settings)}


def runs(name: str) -> bool:
    """Tell whether a program of this name runs."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().split(b"\0")[0].rsplit(b"/", 1)[-1] == name.encode():
                return True
    return False


def move_out(settings: dict[str, Any], name: str) -> bool:
    """Take a static pod's manifest out of kubelet's sight."""
    here, away = Path(settings["manifest_dir"]) / f"{name}.yaml", held(settings, name)
    if not here.is_file():
        return False
    away.parent.mkdir(mode=0o700, exist_ok=True)
    here.rename(away)
    return True


def move_in(settings: dict[str, Any], name: str) -> bool:
    """Give it back."""
    away = held(settings, name)
    if not away.is_file():
        return False
    away.rename(Path(settings["manifest_dir"]) / f"{name}.yaml")
    with suppress(OSError):  # others may still wait in it
        away.parent.rmdir()
    return True


def hold(settings: dict[str, Any], _member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Stop the API server and what acts through it, and wait until none runs."""
    moved = [name for name in PODS if move_out(settings, name)]
    for name in PODS:
        if held(settings, name).is_file():
            wait_until(lambda name=name: not runs(name), settings["wait_s"], f"{name} did not stop")  # type: ignore[misc]
    return {"changed": bool(moved), "held": moved}


def data_in_use(data: Path) -> bool:
    """Tell whether an etcd has these data open: it holds a lock on its file."""
    try:
        with (data / "member/snap/db").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def stop(settings: dict[str, Any], member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Stop etcd, and wait until nobody has its data open."""
    if member.form == "systemd":
        call(["systemctl", "stop", settings["unit"]], limit_s=settings["wait_s"])
    else:
        move_out(settings, "etcd")
    wait_until(lambda: not data_in_use(Path(member.data_dir)), settings["wait_s"], "etcd did not stop")
    return {"changed": True}


def unused(folder: Path, name: str) -> Path:
    """Return a name in a folder that nothing has."""
    return next(path for number in range(1, 1000) if not (path := folder / (f"{name}-{number}" if number > 1 else name)).exists())


def restore(settings: dict[str, Any], member: Member, wanted: dict[str, Any]) -> dict[str, Any]:
    """Put the snapshot in place of the data. Within the data folder, since that may be a file system of its own."""
    data = Path(member.data_dir)
    if data_in_use(data):
        raise RefusedError("etcd runs. Fix: run the whole restore again.")
    data.mkdir(mode=0o700, parents=True, exist_ok=True)  # of a disk that was lost nothing is there
    draft, owner = data / "primus-restoring", data.stat()
    shutil.rmtree(draft, ignore_errors=True)
    members = ",".join(f"{name}={url}" for name, urls in sorted(wanted["members"].items()) for url in urls.split(","))
    words = ["--name", member.name, "--initial-cluster", members, "--initial-advertise-peer-urls", member.peer_urls]
    # Members that were not restored together must not find each other.
    words += ["--initial-cluster-token", f"primus-{wanted['token']}", "--data-dir", str(draft)]
    # The same on every member, or their data would differ.
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
    """Start etcd; it is not waited for, since it answers only when a majority has started."""
    if member.form == "systemd":
        call(["systemctl", "start", "--no-block", settings["unit"]])
        return {"changed": True}
    return {"changed": move_in(settings, "etcd")}


def check(settings: dict[str, Any], member: Member, wanted: dict[str, Any]) -> dict[str, Any]:
    """Wait until etcd answers with a leader, and see that its members and its data are those of the restore.

    Raises:
        RefusedError: It does not answer, or with something else.
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


def release(settings: dict[str, Any], _member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Put the API server back, wait until it is ready, then those that act through it."""
    moved = move_in(settings, PODS[0])
    if (Path(settings["manifest_dir"]) / f"{PODS[0]}.yaml").is_file():
        wait_until(lambda: api_answers(settings), settings["wait_s"], "the API server did not become ready")
    others = [name for name in PODS[1:] if move_in(settings, name)]
    return {"changed": moved or bool(others)}


def finish(settings: dict[str, Any], _member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Remove the copy of the backup."""
    shutil.rmtree(settings["incoming"], ignore_errors=True)
    return {"changed": True}


def look(settings: dict[str, Any], member: Member, _wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the member of this host and its health; empty where it does not answer."""
    if not member.form:
        return {"member": member.to_json(), "health": {}, "reason": "no etcd on this host"}
    try:
        return {"member": member.to_json(), "health": health(settings, member), "reason": ""}
    except RefusedError as error:
        return {"member": member.to_json(), "health": {}, "reason": str(error)}


STEPS = {step.__name__: step for step in (look, judge, hold, stop, restore, start, check, release, finish)}


def main() -> int:
    """Do one step and print what came of it."""
    os.umask(0o077)
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    wanted = json.loads("" if sys.stdin.isatty() else sys.stdin.read() or "{}")
    try:
        print(json.dumps({"changed": False, **STEPS[sys.argv[2]](settings, find_member(settings), wanted)}))
    except (RefusedError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
