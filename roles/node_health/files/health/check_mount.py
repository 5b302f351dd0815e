"""Check that a file system is mounted, has the right type, and responds. One mount point per call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from check_unit import check_managed, read_states
from finding import FAIL, PASS, UNKNOWN, finding, mounts, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings

NOT_MOUNTED = "not mounted"


def check(settings: Settings) -> Iterator[Finding]:
    """Check the mount at `path`. If nothing is mounted, the state of `unit` decides. The runner kills a check that hangs."""
    result, unit = check_mount(settings), settings.get("unit", "")
    yield check_mount_unit(result, unit, settings) if unit and result["found"] == NOT_MOUNTED else result


def check_mount(settings: Settings) -> Finding:
    """Check the file system at `path`; an empty `fstype` accepts any."""
    path, root, expected = settings["path"], settings.get("root", "/"), settings.get("fstype", "")
    fields = {"device": path, "expected": expected or "mounted", "source": "node_health_mounts"}
    found = {point: kind for point, kind, _ in mounts(root)}
    point = mount_point(path, root)
    if point not in found:
        reason, fix = f"nothing is mounted at {path}", "mount it (see the journal of its unit), or correct node_health_mounts"
        return finding("mount", FAIL, **fields, found=NOT_MOUNTED, reason=reason, fix=fix)
    if expected and found[point] != expected:
        reason, fix = f"{path} is {found[point]}, not {expected}", f"run `umount {path}`, or correct node_health_mounts"
        return finding("mount", FAIL, **fields, found=found[point], reason=reason, fix=fix)
    try:
        os.statvfs(os.path.join(root, path.lstrip("/")))  # noqa: PTH118 (a path of its own below root)
    except OSError as error:
        reason = f"{path} is mounted and does not work: {error.strerror}"
        return finding("mount", FAIL, **fields, found=error.strerror, reason=reason, fix=f"run `umount -l {path}` and mount it again")
    return finding("mount", PASS, **fields, found=found[point])


def mount_point(path: str, root: str) -> str:
    """Return a path as the kernel shows it: links are resolved, and there is no trailing slash."""
    top = os.path.realpath(root)
    return os.path.normpath("/" + os.path.relpath(os.path.realpath(os.path.join(top, path.lstrip("/"))), top))  # noqa: PTH118


def check_mount_unit(result: Finding, unit: str, settings: Settings) -> Finding:
    """Return the verdict of the unit for a missing mount: a unit that is not installed yet, or just starts, is not a fault."""
    states, problem = read_states([unit])
    fix = "run `systemctl status` on the host; systemd does not answer"
    found = check_managed(unit, states[0]) if states else finding("unit", UNKNOWN, reason=problem, fix=fix)
    if found["verdict"] == PASS:
        return check_mount(settings)  # it may have been mounted meanwhile
    return {**result, "verdict": found["verdict"], "reason": f"{result['reason']}: {found['reason']}", "fix": found["fix"]}


if __name__ == "__main__":
    serve(check)
