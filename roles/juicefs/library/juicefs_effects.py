#!/usr/bin/python
"""Look at a JuiceFS mount as programs on the host see it, and write or read a small file: the Ansible module `juicefs_effects`.

The file lies in a folder that only root can enter, the only place that `verify` writes to, and is removed by the host that reads it. A look
that fails is `unknown`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.folder_tree import HOMES, account_of, bring
from ansible.module_utils.safe_files import Folder, UnsafePathError, kind, open_folder, within

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = "primus.verdict/1"
SOURCE = "roles/juicefs/meta/argument_specs.yml"
NOBODY = 65534
CLOSES_TRASH = "/usr/local/lib/primus/juicefs_trash.sh"
CLUSTER = "primus"  # below the mount
OLD_FOLDER = ".primus-verify"  # where earlier releases wrote
# More than one write of FUSE (128 KiB), less than one block of JuiceFS (4 MiB).
SIZE_BYTES = 300_000
# A file system whose metadata engine is gone lets programs wait for minutes.
LOOK_S = 60
STATED = "owner and mode as stated"
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
    """Return what to do where a file could not be written or read."""
    return FIX_FOLDERS if isinstance(error, (UnsafePathError, FileNotFoundError)) else FIX_MOUNT


def mounted_as(mount_point: str, mounts: str) -> str:
    """Return what /proc/mounts says lies on that folder last, or nothing."""
    rows = [line.split() for line in mounts.splitlines()]
    kinds = [row[2] for row in rows if len(row) > 2 and row[1] == mount_point]
    return kinds[-1] if kinds else "nothing"


def look_at_mount(host: str, mount_point: str, mounts: str) -> dict[str, Any]:
    """Judge whether the volume is mounted."""
    found = mounted_as(mount_point, mounts)
    verdict = "pass" if found == "fuse.juicefs" else "fail"
    return record(
        host,
        "mounted",
        verdict,
        expected="fuse.juicefs",
        found=found,
        reason="" if verdict == "pass" else f"{mount_point} holds {found}",
        fix=FIX_MOUNT,
    )


def look_at_metrics(host: str, mount_point: str, limit_s: float = LOOK_S) -> dict[str, Any]:
    """Judge whether the mount counts what it does: its file of metrics, which root can read without a port."""

    def look() -> bytes:
        with open_folder(mount_point) as root:
            return root.read(".stats", owner=0)

    try:
        content = within(limit_s, look)
    except (OSError, TimeoutError) as error:
        return record(host, "metrics", "unknown", expected="juicefs", found="", reason=f"{mount_point}/.stats: {error}", fix=FIX_MOUNT)
    found = "juicefs" if b"juicefs_" in content else "no metrics"
    verdict = "pass" if found == "juicefs" else "fail"
    reason = "" if verdict == "pass" else f"{mount_point}/.stats holds no metrics"
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
    """Return the control groups of a process, or nothing where it has ended."""
    try:
        return Path(f"/proc/{number}/cgroup").read_text(encoding="utf-8")
    except OSError:
        return ""


def look_at_ports(host: str, unit: str, stated: str, group_of: Callable[[str], str] = group_of_process) -> dict[str, Any]:
    """Judge whether the mount listens on nothing but the port for metrics that is stated: every account could use its debug pages."""
    words = {"expected": stated or "none"}
    try:
        done = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, errors="replace", check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        return record(host, "ports", "unknown", found="", reason=f"ss: {error}", fix="install iproute2 on this host", **words)
    found = listening(done.stdout, unit, group_of)
    more = [address for address in found if address != stated]
    reason = f"the mount listens on {', '.join(more)}, and every account of this host can read its debug pages there" if more else ""
    fix = "when no file of the mount is open: primus-bootstrap apply hosts.yaml --phase storage"
    return record(host, "ports", "fail" if more else "pass", found=", ".join(found) or "none", reason=reason, fix=fix, **words)


def look_at_trash(host: str, mount_point: str, limit_s: float = LOOK_S) -> dict[str, Any]:
    """Judge whether an account without rights is kept out of the folder of deleted files."""
    path = f"{mount_point}/.trash"

    def look() -> str:
        try:
            next(Path(path).iterdir(), None)
        except FileNotFoundError:
            return "no trash"
        except PermissionError:
            return "closed"
        return "open"

    try:
        found = within(limit_s, look, become=(NOBODY, NOBODY))
    except (OSError, TimeoutError) as error:
        return record(host, "trash", "unknown", expected="closed", found="", reason=f"{path}: {error}", fix=FIX_MOUNT)
    verdict = "fail" if found == "open" else "pass"
    reason = f"{path} can be read by every account: deleted files of others lie there" if verdict == "fail" else ""
    return record(host, "trash", verdict, expected="closed", found=found, reason=reason, fix=f"sh {CLOSES_TRASH} {mount_point}")


def look_at_unit(host: str) -> dict[str, Any]:
    """Judge whether systemd keeps the mount, now and after a boot."""
    done = subprocess.run(["systemctl", "is-active", "juicefs"], capture_output=True, text=True, errors="replace", check=False, timeout=30)
    enabled = subprocess.run(
        ["systemctl", "is-enabled", "juicefs"], capture_output=True, text=True, errors="replace", check=False, timeout=30
    )
    found = f"{done.stdout.strip()} {enabled.stdout.strip()}"
    good = found == "active enabled"
    return record(
        host, "unit", "pass" if good else "fail", expected="active enabled", found=found, reason="" if good else found, fix=FIX_MOUNT
    )


def write(host: str, folder: str, limit_s: float = LOOK_S) -> tuple[dict[str, Any], str]:
    """Write a file of random bytes; return the verdict and the file's sum."""
    data = os.urandom(SIZE_BYTES)
    started = time.monotonic()

    def act() -> None:
        with open_folder(folder, owner=0) as opened:
            opened.write(host, data, mode=0o600)

    try:
        within(limit_s, act)
    except (OSError, TimeoutError) as error:
        return record(host, "write", "fail", expected="written", found="", reason=str(error), fix=fix_of(error)), ""
    verdict = record(host, "write", "pass", expected="written", found="written", seconds=time.monotonic() - started)
    return verdict, hashlib.sha256(data).hexdigest()


def look_at_folders(host: str, tree: dict[str, Any], limit_s: float = LOOK_S) -> list[dict[str, Any]]:
    """Judge owners and modes of the mount and of every folder of the cluster on it, and what users have put beside them."""

    def look() -> tuple[list[dict[str, str]], list[str], list[dict[str, str]]]:
        problems, differing = bring(tree, check=True)
        with open_folder(tree["root"]) as root:
            return problems, differing, strange(root)

    try:
        problems, differing, foreign = within(limit_s, look)
    except (OSError, TimeoutError, KeyError) as error:
        return [record(host, "folders", "unknown", expected=STATED, found="", reason=f"{tree['root']}: {error}", fix=FIX_MOUNT)]
    wrong = [
        *problems,
        *foreign,
        *({"path": path, "problem": "has another owner or mode than is stated", "fix": FIX_FOLDERS} for path in differing),
    ]
    return [folder_record(host, one) for one in wrong] or [record(host, "folders", "pass", expected=STATED, found=STATED)]


def folder_record(host: str, wrong: dict[str, str]) -> dict[str, Any]:
    """Return the verdict on something that is wrong with a folder."""
    words = {"device": wrong["path"], "expected": STATED, "found": wrong["problem"], "fix": wrong["fix"]}
    return record(host, "folders", "fail", reason=f"{wrong['path']} {wrong['problem']}", **words)


def strange(root: Folder) -> list[dict[str, str]]:
    """Return what lies at the top of the mount, among the cluster's folders or the homes, and should not: links of users, foreign homes."""
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
                elif name == OLD_FOLDER and entry.st_uid:
                    problem = f"is {kind(entry.st_mode)} of {owner}, where an earlier release let verify write as root"
                    found.append({"path": path, "problem": problem, "fix": f"ask {owner} what it is for; `mv {path} {path}.refused`"})
                elif homes and not stat.S_ISDIR(entry.st_mode):
                    found.append({"path": path, "problem": f"is {kind(entry.st_mode)} of {owner}, no home", "fix": f"move {path} away"})
                elif homes and owner != name and not owner.startswith("uid "):
                    found.append({"path": path, "problem": f"belongs to {owner}", "fix": f"move {path} away, and apply the phase storage"})
                elif homes and entry.st_mode & 0o077:
                    mode = f"has mode {stat.S_IMODE(entry.st_mode):04o}: other accounts can enter it"
                    found.append({"path": path, "problem": mode, "fix": f"chmod 0700 {path}"})
    return found


def opened(root: Folder, name: str) -> Folder | None:
    """Open a folder; None where there is none, which `bring` reports."""
    try:
        return root.folder(name)
    except OSError:
        return None


def drop_old_folder(mount_point: str) -> None:
    """Remove the empty folder in which earlier releases wrote; one that is not root's is reported by `strange` or left alone."""
    with suppress(OSError), open_folder(mount_point) as root:
        with root.folder(OLD_FOLDER, owner=0) as old:
            for name in old.names(limit=20_000):
                if stat.S_ISREG(old.stat(name).st_mode):
                    old.remove(name)
        os.rmdir(OLD_FOLDER, dir_fd=root.descriptor)


def dump(host: str, command: list[str], env_file: str, below: str, limit_s: int = LOOK_S) -> dict[str, Any]:
    """Have the program dump the folder of the proof, and judge whether this host's file is in it.

    It comes through standard output: a file that `juicefs dump` is given is replaced by name, a device too.
    The whole volume is not dumped, because that takes minutes for millions of files.
    """
    lines = (line.partition("=") for line in Path(env_file).read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    environment = {"HOME": "/root", "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **{name: value for name, _, value in lines if name}}
    words = {"expected": "the file just written", "found": "", "fix": "run `juicefs dump` by hand on this host; see its last lines"}
    try:
        asked = [*command, f"--subdir=/{below}"]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True, errors="replace", check=False, timeout=limit_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        return record(host, "metadata_dump", "unknown", reason=f"juicefs dump: {type(error).__name__}, at most {limit_s} s", **words)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300]
        return record(host, "metadata_dump", "fail", reason=f"juicefs dump ended with {done.returncode}: {reason}", **words)
    try:
        # Before it, the drivers of SQL engines print lines of their own.
        names = list(json.loads("{" + done.stdout.partition("{")[2])["FSTree"]["entries"])
    except (ValueError, KeyError, TypeError):
        return record(host, "metadata_dump", "fail", reason="what juicefs dump printed is no dump", **words)
    if host not in names:
        return record(host, "metadata_dump", "fail", reason=f"the dump does not hold {below}/{host}", **words)
    return record(host, "metadata_dump", "pass", expected=words["expected"], found=words["expected"])


def read(host: str, folder: str, other: str, expected: str, limit_s: float = LOOK_S) -> dict[str, Any]:
    """Read the file that another host wrote, compare its sum, and remove it."""
    if not other or other == host:
        return record(host, "read_other", "skipped", reason="no other host mounts the volume in this run")
    if not expected:
        return record(host, "read_other", "unknown", reason=f"{other} did not write its file", fix=f"see what {other} says")
    started = time.monotonic()

    def act() -> str:
        with open_folder(folder, owner=0) as opened:
            content = opened.read(other, owner=0)
            opened.remove(other)
            return hashlib.sha256(content).hexdigest()

    try:
        found = within(limit_s, act)
    except (OSError, TimeoutError, UnsafePathError) as error:
        reason = f"{folder}/{other}: {error}"
        return record(host, "read_other", "fail", expected=expected, found="", device=other, reason=reason, fix=fix_of(error))
    verdict = "pass" if found == expected else "fail"
    reason = "" if verdict == "pass" else f"the file of {other} reads differently here"
    return record(
        host, "read_other", verdict, expected=expected, found=found, device=other, reason=reason, seconds=time.monotonic() - started
    )


def main() -> None:
    """Read the arguments, look, and report verdicts."""
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "mount_point": {"type": "path", "required": True},
            "listens": {"type": "str", "default": ""},
            "unit": {"type": "str", "default": "juicefs.service"},
            "backs_up": {"type": "bool", "default": True},
            "dump": {"type": "list", "elements": "str", "default": []},
            "env_file": {"type": "path", "default": ""},
            "folder": {"type": "str", "required": True},
            "tree": {"type": "dict", "default": {}},
            "other": {"type": "str"},
            "expected": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    host, mount_point, sum_of_file = wanted["host"], wanted["mount_point"], ""
    folder = f"{mount_point}/{wanted['folder']}"
    verdicts = [look_at_mount(host, mount_point, Path("/proc/mounts").read_text(encoding="utf-8"))]
    if wanted["other"] is not None:
        verdicts = [read(host, folder, wanted["other"], wanted["expected"])]
    elif verdicts[0]["verdict"] == "pass":
        with suppress(OSError, TimeoutError):
            within(LOOK_S, lambda: drop_old_folder(mount_point))
        written, sum_of_file = write(host, folder)
        verdicts += [look_at_unit(host), look_at_metrics(host, mount_point), written]
        verdicts += [look_at_trash(host, mount_point), look_at_ports(host, wanted["unit"], wanted["listens"])]
        verdicts += look_at_folders(host, wanted["tree"]) if wanted["tree"] else []
        if not wanted["backs_up"]:
            reason = "this version of JuiceFS knows no dump of metadata (1.0 does)"
            verdicts.append(record(host, "metadata_dump", "skipped", reason=reason, fix="back the metadata engine up itself"))
        elif wanted["dump"] and sum_of_file:
            verdicts.append(dump(host, wanted["dump"], wanted["env_file"], wanted["folder"]))
    result = {"changed": False, "sum": sum_of_file, "stdout": json.dumps({"verdicts": verdicts})}
    failed = [
        f"{entry['check']}: {entry['reason']}. Fix: {entry.get('fix') or FIX_MOUNT}" for entry in verdicts if entry["verdict"] == "fail"
    ]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
