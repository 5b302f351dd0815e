"""Check etcd's health and the newest backup: `etcd_verify.py SETTINGS.json HOURS MEMBERS`.

It prints verdict records and changes nothing. The backup is read to its end and compared with its recorded checksum.
"""

from __future__ import annotations

import calendar
import json
import sys
import time
from pathlib import Path
from typing import Any

from etcd_backup import digest
from etcd_member import RefusedError, find_member, health, inspect

SOURCE = "roles/kube_backup/meta/argument_specs.yml"
FIX = "primus-bootstrap backup etcd; `journalctl -u primus-etcd-backup` has the reason of a failed run"


def record(host: str, check: str, verdict: str, **fields: Any) -> dict[str, Any]:
    """Return one verdict record."""
    return {"check": f"kube_backup.{check}", "host": host, "verdict": verdict, **fields, "source": SOURCE, "started": time.time()}


def etcd_verdict(host: str, seen: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the verdict of a member's status."""
    wrong = [] if seen["leader"] else ["no leader"]
    wrong += [str(one) for one in seen["errors"]]
    wrong += [] if len(seen["members"]) == count else [f"{len(seen['members'])} members, the group etcd has {count} hosts"]
    words = {"expected": f"a leader, {count} members, no alarm", "found": f"{len(seen['members'])} members at revision {seen['revision']}"}
    if not wrong:
        return record(host, "etcd", "pass", **words)
    return record(
        host, "etcd", "fail", **words, reason="; ".join(wrong), fix="check `etcdctl endpoint status --cluster` and `etcdctl alarm list`"
    )


def check_etcd(settings: dict[str, Any], count: int) -> dict[str, Any]:
    """Check the member of this host."""
    host = settings["host"]
    try:
        member = find_member(settings)
        if not member.form:
            return record(host, "etcd", "skipped", reason="no etcd on this host")
        return etcd_verdict(host, health(settings, member), count)
    except RefusedError as error:
        return record(host, "etcd", "unknown", expected="an answer", found="", reason=str(error), fix="check the log of etcd on this host")


def newest(folder: Path) -> Path | None:
    """Return the newest backup of this host."""
    found = sorted(folder.glob("etcd-*/backup.json"))
    return found[-1].parent if found else None


def age_h(stamp: str, now: float) -> float:
    """Return how many hours ago a backup was taken."""
    return (now - calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))) / 3600


def damage(settings: dict[str, Any], folder: Path, backup: dict[str, Any]) -> str:
    """Return why a backup cannot be restored; empty if it can."""
    if not backup.get("etcd"):
        return ""
    snapshot = folder / "snapshot.db"
    if digest(snapshot) != backup["etcd"]["sha256"]:
        return f"{snapshot} was changed: its checksum differs"
    found = inspect(settings, str(snapshot))
    return "" if found["hash"] == backup["etcd"]["hash"] else f"{snapshot} has other data than were saved"


def check_backup(settings: dict[str, Any], most_h: float, now: float) -> dict[str, Any]:
    """Check the newest backup of this host."""
    host, folder = settings["host"], newest(Path(settings["folder"]))
    if folder is None:
        return record(host, "newest", "skipped", reason=f"no backup in {settings['folder']} yet", fix=FIX)
    try:
        backup = json.loads((folder / "backup.json").read_text(encoding="utf-8"))
        wrong, hours = damage(settings, folder, backup), age_h(backup["taken"], now)
    except (OSError, ValueError, KeyError, RefusedError) as error:
        return record(host, "newest", "fail", expected="readable", found=str(folder), reason=f"{error}", fix=FIX)
    words = {"expected": f"complete, <= {most_h:.0f}", "found": f"{hours:.1f}", "unit": "hours"}
    reason = wrong or (f"{folder} is {hours:.0f} hours old" if hours > most_h else "")
    return record(host, "newest", "fail" if reason else "pass", **words, reason=reason, fix=FIX if reason else "")


def main() -> int:
    """Check both, and print the verdicts."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found = [check_etcd(settings, int(sys.argv[3])), check_backup(settings, float(sys.argv[2]), time.time())]
    print(json.dumps({"verdicts": found}))
    failed = [f"{one['check']}: {one['reason']}. Fix: {one['fix']}" for one in found if one["verdict"] == "fail"]
    print("; ".join(failed), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
