"""Is a file system that should be mounted there, of the right type, and does it answer? One mount point a call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from check_unit import ask_states, judge_brought
from finding import FAIL, PASS, UNKNOWN, finding, mounts, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings

NOT_MOUNTED = "not mounted"


def judge(settings: Settings) -> Iterator[Finding]:
    """Judge the mount at `path`; where `unit` mounts it, that unit says why nothing is mounted. One that hangs is the runner's to end."""
    seen, unit = look(settings), settings.get("unit", "")
    yield explained(seen, unit, settings) if unit and seen["found"] == NOT_MOUNTED else seen


def look(settings: Settings) -> Finding:
    """Judge what is mounted at `path`; `fstype` of an empty string takes any."""
    path, root, wanted = settings["path"], settings.get("root", "/"), settings.get("fstype", "")
    fields = {"device": path, "expected": wanted or "mounted", "source": "node_health_mounts"}
    found = {point: kind for point, kind, _ in mounts(root)}
    point = mount_point(path, root)
    if point not in found:
        reason, fix = f"nothing is mounted at {path}", "start what mounts it, and see its journal; or correct node_health_mounts"
        return finding("mount", FAIL, **fields, found=NOT_MOUNTED, reason=reason, fix=fix)
    if wanted and found[point] != wanted:
        reason, fix = f"{path} is {found[point]}, not {wanted}", "unmount what lies over it, or correct node_health_mounts"
        return finding("mount", FAIL, **fields, found=found[point], reason=reason, fix=fix)
    try:
        os.statvfs(os.path.join(root, path.lstrip("/")))  # noqa: PTH118 (a path of its own below root)
    except OSError as error:
        reason = f"{path} is mounted and does not work: {error.strerror}"
        return finding("mount", FAIL, **fields, found=error.strerror, reason=reason, fix="unmount it (umount -l) and mount it again")
    return finding("mount", PASS, **fields, found=found[point])


def mount_point(path: str, root: str) -> str:
    """Return a path as the kernel names it: links are followed, and a slash at its end is left out."""
    top = os.path.realpath(root)
    return os.path.normpath("/" + os.path.relpath(os.path.realpath(os.path.join(top, path.lstrip("/"))), top))  # noqa: PTH118


def explained(seen: Finding, unit: str, settings: Settings) -> Finding:
    """Judge a mount that is not there by its unit: one that is not brought yet, or that just starts, is no fault of the host."""
    states, words = ask_states([unit])
    of = judge_brought(unit, states[0]) if states else finding("unit", UNKNOWN, reason=words, fix="systemd itself does not answer")
    if of["verdict"] == PASS:
        return look(settings)  # it may have come up between the two looks
    return {**seen, "verdict": of["verdict"], "reason": f"{seen['reason']}: {of['reason']}", "fix": of["fix"]}


if __name__ == "__main__":
    serve(judge)
