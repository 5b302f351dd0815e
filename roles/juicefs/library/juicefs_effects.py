#!/usr/bin/python
"""Look at a JuiceFS mount as programs on the host see it, and write or read a small file: the Ansible module `juicefs_effects`.

The file lies in a folder of its own on the volume and is removed by the host that reads it. A look that fails is `unknown`.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "primus.verdict/1"
SOURCE = "roles/juicefs/meta/argument_specs.yml"
FOLDER = ".primus-verify"
# More than one write of FUSE (128 KiB), less than one block of JuiceFS (4 MiB).
SIZE_BYTES = 300_000
# A file system whose metadata engine is gone lets programs wait for minutes.
LOOK_S = 60
FIX_MOUNT = "see `journalctl -u juicefs -n 30`, and that the metadata engine and the object store answer from this host"


class LateError(Exception):
    """The file system did not answer in time."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """End what takes longer than so many seconds.

    Raises:
        LateError: It took longer.
    """

    def stop(*_: object) -> NoReturn:
        raise LateError(f"no answer within {seconds} s")

    former = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


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


def look_at_metrics(host: str, url: str) -> dict[str, Any]:
    """Judge whether the mount tells its metrics."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 (an http address of this role's own making)
            found = "juicefs" if b"juicefs_" in answer.read() else "other metrics"
    except OSError as error:
        return record(
            host, "metrics", "unknown", expected="juicefs", found="", reason=f"{url}: {error}", fix="look who has the port: ss -ltnp"
        )
    return record(
        host,
        "metrics",
        "pass" if found == "juicefs" else "fail",
        expected="juicefs",
        found=found,
        reason="" if found == "juicefs" else found,
    )


def look_at_unit(host: str) -> dict[str, Any]:
    """Judge whether systemd keeps the mount, now and after a boot."""
    done = subprocess.run(["systemctl", "is-active", "juicefs"], capture_output=True, text=True, check=False)
    enabled = subprocess.run(["systemctl", "is-enabled", "juicefs"], capture_output=True, text=True, check=False)
    found = f"{done.stdout.strip()} {enabled.stdout.strip()}"
    good = found == "active enabled"
    return record(
        host, "unit", "pass" if good else "fail", expected="active enabled", found=found, reason="" if good else found, fix=FIX_MOUNT
    )


def write(host: str, mount_point: str, limit_s: int = LOOK_S) -> tuple[dict[str, Any], str]:
    """Write a file of random bytes; return the verdict and the file's sum."""
    data = os.urandom(SIZE_BYTES)
    started = time.monotonic()
    try:
        with at_most(limit_s):
            folder = Path(mount_point, FOLDER)
            folder.mkdir(mode=0o700, exist_ok=True)
            with (folder / host).open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
    except (OSError, LateError) as error:
        return record(host, "write", "fail", expected="written", found="", reason=str(error), fix=FIX_MOUNT), ""
    verdict = record(host, "write", "pass", expected="written", found="written", seconds=time.monotonic() - started)
    return verdict, hashlib.sha256(data).hexdigest()


def dump(host: str, command: list[str], env_file: str, limit_s: int = LOOK_S) -> dict[str, Any]:
    """Have the program dump the folder of the proof, and judge whether this host's file is in it.

    It comes through standard output: a file that `juicefs dump` is given is replaced by name, a device too.
    The whole volume is not dumped, because that takes minutes for millions of files.
    """
    lines = (line.partition("=") for line in Path(env_file).read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    environment = {"HOME": "/root", "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **{name: value for name, _, value in lines if name}}
    words = {"expected": "the file just written", "found": "", "fix": "run `juicefs dump` by hand on this host; see its last lines"}
    try:
        done = subprocess.run(
            [*command, f"--subdir=/{FOLDER}"], env=environment, capture_output=True, text=True, check=False, timeout=limit_s
        )
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
        return record(host, "metadata_dump", "fail", reason=f"the dump does not hold {FOLDER}/{host}", **words)
    return record(host, "metadata_dump", "pass", expected=words["expected"], found=words["expected"])


def read(host: str, mount_point: str, other: str, expected: str, limit_s: int = LOOK_S) -> dict[str, Any]:
    """Read the file that another host wrote, compare its sum, and remove it."""
    if not other or other == host:
        return record(host, "read_other", "skipped", reason="no other host mounts the volume in this run")
    if not expected:
        return record(host, "read_other", "unknown", reason=f"{other} did not write its file", fix=f"see what {other} says")
    path = Path(mount_point, FOLDER, other)
    started = time.monotonic()
    try:
        with at_most(limit_s):
            found = hashlib.sha256(path.read_bytes()).hexdigest()
            path.unlink()
    except (OSError, LateError) as error:
        return record(host, "read_other", "fail", expected=expected, found="", device=other, reason=f"{path}: {error}", fix=FIX_MOUNT)
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
            "metrics_url": {"type": "str", "default": ""},
            "backs_up": {"type": "bool", "default": True},
            "dump": {"type": "list", "elements": "str", "default": []},
            "env_file": {"type": "path", "default": ""},
            "other": {"type": "str"},
            "expected": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    host, mount_point, sum_of_file = wanted["host"], wanted["mount_point"], ""
    verdicts = [look_at_mount(host, mount_point, Path("/proc/mounts").read_text(encoding="utf-8"))]
    if wanted["other"] is not None:
        verdicts = [read(host, mount_point, wanted["other"], wanted["expected"])]
    elif verdicts[0]["verdict"] == "pass":
        written, sum_of_file = write(host, mount_point)
        verdicts += [look_at_unit(host), look_at_metrics(host, wanted["metrics_url"]), written]
        if not wanted["backs_up"]:
            reason = "this version of JuiceFS knows no dump of metadata (1.0 does)"
            verdicts.append(record(host, "metadata_dump", "skipped", reason=reason, fix="back the metadata engine up itself"))
        elif wanted["dump"] and sum_of_file:
            verdicts.append(dump(host, wanted["dump"], wanted["env_file"]))
    result = {"changed": False, "sum": sum_of_file, "stdout": json.dumps({"verdicts": verdicts})}
    failed = [
        f"{entry['check']}: {entry['reason']}. Fix: {entry.get('fix') or FIX_MOUNT}" for entry in verdicts if entry["verdict"] == "fail"
    ]
    if failed:
        module.fail_json(msg="; ".join(failed), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
