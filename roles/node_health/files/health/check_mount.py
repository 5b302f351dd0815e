"""Is a file system that should be mounted there, of the right type, and does it answer? One mount point a call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from finding import FAIL, PASS, finding, mounts, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings


def judge(settings: Settings) -> Iterator[Finding]:
    """Judge the mount at `path`; `fstype` of an empty string takes any. One that hangs is the runner's to end."""
    path, root, wanted = settings["path"], settings.get("root", "/"), settings.get("fstype", "")
    fields = {"device": path, "expected": wanted or "mounted", "source": "node_health_mounts"}
    found = {point: kind for point, kind, _ in mounts(root)}
    if path not in found:
        reason, fix = f"nothing is mounted at {path}", "start what mounts it, and see its journal; or correct node_health_mounts"
        yield finding("mount", FAIL, **fields, found="not mounted", reason=reason, fix=fix)
        return
    if wanted and found[path] != wanted:
        reason, fix = f"{path} is {found[path]}, not {wanted}", "unmount what lies over it, or correct node_health_mounts"
        yield finding("mount", FAIL, **fields, found=found[path], reason=reason, fix=fix)
        return
    try:
        os.statvfs(os.path.join(root, path.lstrip("/")))  # noqa: PTH118 (a path of its own below root)
    except OSError as error:
        reason = f"{path} is mounted and does not work: {error.strerror}"
        yield finding("mount", FAIL, **fields, found=error.strerror, reason=reason, fix="unmount it (umount -l) and mount it again")
        return
    yield finding("mount", PASS, **fields, found=found[path])


if __name__ == "__main__":
    serve(judge)
