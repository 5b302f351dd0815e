#!/usr/bin/python
"""Verify a JuiceFS mount: folders, trash, ports, metrics and a metadata dump, and exchange a small file between hosts. It reports verdicts.

The file is in a folder that only root can enter, the only place that this module writes to. The host that reads the file removes it. A
check that cannot be done is `unknown`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.folder_tree import HOMES, account_of, apply_tree
from ansible.module_utils.safe_files import Folder, UnsafePathError, kind, open_folder, within

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = "primus.verdict/1"
SOURCE = "roles/juicefs/meta/argument_specs.yml"
NOBODY = 65534
TRASH_SCRIPT = "/usr/local/lib/primus/juicefs_trash.sh"
CLUSTER = "primus"  # the cluster's folder below the mount
# More than one write of FUSE (128 KiB), less than one block of JuiceFS (4 MiB).
SIZE_BYTES = 300_000
# Without its metadata engine, the file system blocks programs for minutes.
CHECK_S = 60
EXPECTED = "owner and mode as configured"
FIX_FOLDERS = "primus-bootstrap apply hosts.yaml --phase storage"
FIX_MOUNT = "see `journalctl -u juicefs -n 30`, and that the metadata engine and the object store answer from this host"


def record(host: str, check: str, verdict: str, **facts: Any) -> dict[str, Any]:
    """Return one verdict record."""
    return {
        "check": f"juicefs.{check}",
        "host": host,
        "verdict": verdict,
        "source": SOURCE,
        "started": time.time(),
        "schema": SCHEMA,
        **facts,
    }


def fix_of(error: OSError) -> str:
    """Return the fix for a file that could not be written or read."""
    return FIX_FOLDERS if isinstance(error, (UnsafePathError, FileNotFoundError)) else FIX_MOUNT


def mounted_as(mount_point: str, mounts: str) -> str:
    """Return the type of the topmost mount on that folder in /proc/mounts, or `nothing`."""
    rows = [line.split() for line in mounts.splitlines()]
    kinds = [row[2] for row in rows if len(row) > 2 and row[1] == mount_point]
    return kinds[-1] if kinds else "nothing"


def check_mount(host: str, mount_point: str, mounts: str) -> dict[str, Any]:
    """Check that the volume is mounted."""
    found = mounted_as(mount_point, mounts)
    verdict = "pass" if found == "fuse.juicefs" else "fail"
    return record(
        host,
        "mounted",
        verdict,
        expected="fuse.juicefs",
        found=found,
        reason="" if verdict == "pass" else f"{found} is mounted on {mount_point}",
        fix=FIX_MOUNT,
    )


def check_metrics(host: str, mount_point: str, limit_s: float = CHECK_S) -> dict[str, Any]:
    """Check that the mount has metrics, in its file .stats, which root can read without a port."""

    def read_stats() -> bytes:
        with open_folder(mount_point) as root:
            return root.read(".stats", owner=0)

    try:
        content = within(limit_s, read_stats)
    except (OSError, TimeoutError) as error:
        return record(host, "metrics", "unknown", expected="juicefs", found="", reason=f"{mount_point}/.stats: {error}", fix=FIX_MOUNT)
    found = "juicefs" if b"juicefs_" in content else "no metrics"
    verdict = "pass" if found == "juicefs" else "fail"
    reason = "" if verdict == "pass" else f"{mount_point}/.stats has no metrics"
    return record(host, "metrics", verdict, expected="juicefs", found=found, reason=reason, fix=FIX_MOUNT)


def listening(sockets: str, unit: str, group_of: Callable[[str], str]) -> list[str]:
    """Return the addresses on which processes of a unit listen, from what `ss -Hltnp` printed."""
    found = set()
    for line in sockets.splitlines():
        cells = line.split()
        if len(cells) > 5 and any(f"/{unit}" in group_of(number) for number in re.findall(r"pid=(\d+)", line)):
            found.add(cells[3])
    return sorted(found)


def group_of_process(number: str) -> str:
    """Return the control groups of a process, or an empty string if it has ended."""
    try:
        return Path(f"/proc/{number}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return ""


def check_ports(host: str, unit: str, allowed: str, group_of: Callable[[str], str] = group_of_process) -> dict[str, Any]:
    """Check that the mount listens only on its configured metrics port, because every account could read its debug pages."""
    facts = {"expected": allowed or "none"}
    try:
        done = run_command(["ss", "-Hltnp"], timeout_s=30)
    except OSError as error:
        return record(host, "ports", "unknown", found="", reason=f"ss: {error}", fix="install iproute2 on this host", **facts)
    if done.code:
        return record(host, "ports", "unknown", found="", reason=f"ss: {done.last_words()}", fix="run `ss -ltnp` on this host", **facts)
    found = listening(done.stdout, unit, group_of)
    more = [address for address in found if address != allowed]
    reason = f"the mount listens on {', '.join(more)}, and every account of this host can read its debug pages there" if more else ""
    fix = "when no file of the mount is open: primus-bootstrap apply hosts.yaml --phase storage"
    return record(host, "ports", "fail" if more else "pass", found=", ".join(found) or "none", reason=reason, fix=fix, **facts)


def check_trash(host: str, mount_point: str, limit_s: float = CHECK_S) -> dict[str, Any]:
    """Check that an unprivileged account cannot read the folder of deleted files."""
    path = f"{mount_point}/.trash"

    def list_trash() -> str:
        try:
            next(Path(path).iterdir(), None)
        except FileNotFoundError:
            return "no trash"
        except PermissionError:
            return "closed"
        return "open"

    try:
        found = within(limit_s, list_trash, become=(NOBODY, NOBODY))
    except (OSError, TimeoutError) as error:
        return record(host, "trash", "unknown", expected="closed", found="", reason=f"{path}: {error}", fix=FIX_MOUNT)
    verdict = "fail" if found == "open" else "pass"
    reason = f"every account can read {path}, which has deleted files of others" if verdict == "fail" else ""
    return record(host, "trash", verdict, expected="closed", found=found, reason=reason, fix=f"sh {TRASH_SCRIPT} {mount_point}")


def check_unit(host: str) -> dict[str, Any]:
    """Check that the unit is active and enabled."""
    found = " ".join(run_command(["systemctl", verb, "juicefs"], timeout_s=30).stdout.strip() for verb in ("is-active", "is-enabled"))
    good = found == "active enabled"
    return record(
        host, "unit", "pass" if good else "fail", expected="active enabled", found=found, reason="" if good else found, fix=FIX_MOUNT
    )


def write(host: str, folder: str, limit_s: float = CHECK_S) -> tuple[dict[str, Any], str]:
    """Write a file of random bytes; return the verdict and the file's SHA-256."""
    data = os.urandom(SIZE_BYTES)
    started = time.monotonic()

    def write_file() -> None:
        with open_folder(folder, owner=0) as opened:
            opened.write(host, data, mode=0o600)

    try:
        within(limit_s, write_file)
    except (OSError, TimeoutError) as error:
        return record(host, "write", "fail", expected="written", found="", reason=str(error), fix=fix_of(error)), ""
    verdict = record(host, "write", "pass", expected="written", found="written", seconds=time.monotonic() - started)
    return verdict, hashlib.sha256(data).hexdigest()


def check_folders(host: str, tree: dict[str, Any], limit_s: float = CHECK_S) -> list[dict[str, Any]]:
    """Check owners and modes of the mount and of the cluster's folders on it, and find entries that users have put beside them."""

    def compare() -> tuple[list[dict[str, str]], list[str], list[dict[str, str]]]:
        problems, differing = apply_tree(tree, check=True)
        with open_folder(tree["root"]) as root:
            return problems, differing, foreign_entries(root)

    try:
        problems, differing, foreign = within(limit_s, compare)
    except (OSError, TimeoutError, KeyError) as error:
        return [record(host, "folders", "unknown", expected=EXPECTED, found="", reason=f"{tree['root']}: {error}", fix=FIX_MOUNT)]
    wrong = [
        *problems,
        *foreign,
        *({"path": path, "problem": "has another owner or mode than configured", "fix": FIX_FOLDERS} for path in differing),
    ]
    return [folder_record(host, one) for one in wrong] or [record(host, "folders", "pass", expected=EXPECTED, found=EXPECTED)]


def folder_record(host: str, wrong: dict[str, str]) -> dict[str, Any]:
    """Return the verdict on a folder with a problem."""
    facts = {"device": wrong["path"], "expected": EXPECTED, "found": wrong["problem"], "fix": wrong["fix"]}
    return record(host, "folders", "fail", reason=f"{wrong['path']} {wrong['problem']}", **facts)


def foreign_entries(root: Folder) -> list[dict[str, str]]:
    """Return links of users, foreign homes and other unexpected entries at the top of the mount, in `primus` and in `home`."""
    found = []
    for folder, homes in ((root, False), (opened(root, CLUSTER), False), (opened(root, HOMES), True)):
        if folder is None:
            continue
        for name in folder.names():
            with suppress(FileNotFoundError):
                entry = folder.stat(name)
                path = f"{folder.path}/{name}"
                owner = account_of(entry.st_uid)
                if stat.S_ISLNK(entry.st_mode) and entry.st_uid:
                    found.append(
                        {"path": path, "problem": f"is a symbolic link of {owner}", "fix": f"ask {owner} what it is for; `rm {path}`"}
                    )
                elif homes and not stat.S_ISDIR(entry.st_mode):
                    found.append({"path": path, "problem": f"is {kind(entry.st_mode)} of {owner}, not a home", "fix": f"move {path} away"})
                elif homes and owner != name and not owner.startswith("uid "):
                    found.append({"path": path, "problem": f"belongs to {owner}", "fix": f"move {path} away, and apply the phase storage"})
                elif homes and entry.st_mode & 0o077:
                    mode = f"has mode {stat.S_IMODE(entry.st_mode):04o}: other accounts can enter it"
                    found.append({"path": path, "problem": mode, "fix": f"chmod 0700 {path}"})
    return found


def opened(root: Folder, name: str) -> Folder | None:
    """Open a folder; return None if there is none, which `apply_tree` reports."""
    try:
        return root.folder(name)
    except OSError:
        return None


def check_dump(host: str, command: list[str], env_file: str, below: str, limit_s: int = CHECK_S) -> dict[str, Any]:
    """Dump the metadata of the test folder, and check that this host's file is in it.

    The dump goes to standard output, because `juicefs dump` would replace any file that it is given, also a device.
    The whole volume is not dumped, because that takes minutes for millions of files.
    """
    lines = (line.partition("=") for line in Path(env_file).read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    environment = {"HOME": "/root", "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **{name: value for name, _, value in lines if name}}
    facts = {"expected": "the file just written", "found": "", "fix": "run `juicefs dump` by hand on this host and see its last lines"}
    try:
        argv = [*command, f"--subdir=/{below}"]
        done = run_command(argv, env=environment, timeout_s=limit_s)
    except OSError as error:
        return record(host, "metadata_dump", "unknown", reason=f"juicefs dump: {type(error).__name__}, at most {limit_s} s", **facts)
    if done.code:
        reason = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:300]
        return record(host, "metadata_dump", "fail", reason=f"juicefs dump ended with {done.code}: {reason}", **facts)
    try:
        # Drivers of SQL engines print other lines before the dump.
        names = list(json.loads("{" + done.stdout.partition("{")[2])["FSTree"]["entries"])
    except (ValueError, KeyError, TypeError):
        return record(host, "metadata_dump", "fail", reason="the output of juicefs dump is not a dump", **facts)
    if host not in names:
        return record(host, "metadata_dump", "fail", reason=f"the dump does not contain {below}/{host}", **facts)
    return record(host, "metadata_dump", "pass", expected=facts["expected"], found=facts["expected"])


def read(host: str, folder: str, other: str, expected: str, limit_s: float = CHECK_S) -> dict[str, Any]:
    """Read the file that another host wrote, compare its SHA-256, and remove it."""
    if not other or other == host:
        return record(host, "read_other", "skipped", reason="no other host mounts the volume in this run")
    if not expected:
        return record(host, "read_other", "unknown", reason=f"{other} did not write its file", fix=f"see the verdict of {other}")
    started = time.monotonic()

    def read_file() -> str:
        with open_folder(folder, owner=0) as opened:
            content = opened.read(other, owner=0)
            opened.remove(other)
            return hashlib.sha256(content).hexdigest()

    try:
        found = within(limit_s, read_file)
    except (OSError, TimeoutError, UnsafePathError) as error:
        reason = f"{folder}/{other}: {error}"
        return record(host, "read_other", "fail", expected=expected, found="", device=other, reason=reason, fix=fix_of(error))
    verdict = "pass" if found == expected else "fail"
    reason = "" if verdict == "pass" else f"the file of {other} has other contents on this host"
    return record(
        host, "read_other", verdict, expected=expected, found=found, device=other, reason=reason, seconds=time.monotonic() - started
    )


def main() -> None:
    """Run the checks and report the verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "mount_point": {"type": "path", "required": True},
            "listens": {"type": "str", "default": ""},
            "unit": {"type": "str", "default": "juicefs.service"},
            "supports_dump": {"type": "bool", "default": True},
            "dump": {"type": "list", "elements": "str", "default": []},
            "env_file": {"type": "path", "default": ""},
            "folder": {"type": "str", "required": True},
            "tree": {"type": "dict", "default": {}},
            "other": {"type": "str"},
            "expected": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params = module.params
    host, mount_point, checksum = params["host"], params["mount_point"], ""
    folder = f"{mount_point}/{params['folder']}"
    verdicts = [check_mount(host, mount_point, Path("/proc/mounts").read_text(encoding="utf-8"))]
    if params["other"] is not None:
        verdicts = [read(host, folder, params["other"], params["expected"])]
    elif verdicts[0]["verdict"] == "pass":
        written, checksum = write(host, folder)
        verdicts += [check_unit(host), check_metrics(host, mount_point), written]
        verdicts += [check_trash(host, mount_point), check_ports(host, params["unit"], params["listens"])]
        verdicts += check_folders(host, params["tree"]) if params["tree"] else []
        if not params["supports_dump"]:
            reason = "this version of JuiceFS cannot dump metadata (1.0 can)"
            verdicts.append(record(host, "metadata_dump", "skipped", reason=reason, fix="back up the metadata engine itself"))
        elif params["dump"] and checksum:
            verdicts.append(check_dump(host, params["dump"], params["env_file"], params["folder"]))
    result = {"changed": False, "checksum": checksum, "stdout": json.dumps({"verdicts": verdicts})}
    failed = [
        f"{entry['check']}: {entry['reason']}. Fix: {entry.get('fix') or FIX_MOUNT}" for entry in verdicts if entry["verdict"] == "fail"
    ]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
