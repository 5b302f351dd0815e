"""Check free space and inodes of one path, and that its file system is mounted writable. Writes nothing."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, finding, mounts, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings

GIB = 1 << 30


def check(settings: Settings) -> Iterator[Finding]:
    """Check one path; `min_free_gib` (GiB) and `min_free_inodes_percent` are the thresholds."""
    path, root = settings["path"], settings.get("root", "/")
    try:
        state = os.statvfs(os.path.join(root, path.lstrip("/")))  # noqa: PTH118 (a path of its own below root)
    except FileNotFoundError:
        yield finding("disk", SKIPPED, device=path, reason=f"{path} does not exist on this host")
        return
    except OSError as error:  # EIO, ESHUTDOWN, ESTALE: it exists and does not work
        fix = "see `journalctl -k` for the disk error; check the disk, then the file system"
        yield finding(
            "disk", FAIL, device=path, expected="answers", found=error.strerror, reason=f"{path} does not work: {error.strerror}", fix=fix
        )
        return
    minimum = settings["min_free_gib"]
    free_gib = state.f_bavail * state.f_frsize / GIB
    yield finding(
        "disk",
        PASS if free_gib >= minimum else FAIL,
        device=path,
        expected=f">= {minimum:g}",
        found=f"{free_gib:.2f}",
        unit="GiB",
        source="node_health_disk_min_free_gib",
        reason=f"{free_gib:.2f} GiB are free, the minimum is {minimum:g}",
        fix=f"free space below {path}, or lower node_health_disk_min_free_gib",
    )
    # btrfs and some network file systems have no fixed number of inodes and report 0.
    if state.f_files:
        yield _inodes(path, 100 * state.f_favail / state.f_files, settings["min_free_inodes_percent"])
    yield _writable(path, root)


def _inodes(path: str, free: float, minimum: float) -> Finding:
    return finding(
        "inodes",
        PASS if free >= minimum else FAIL,
        device=path,
        expected=f">= {minimum:g}",
        found=f"{free:.1f}",
        unit="percent",
        source="node_health_disk_min_free_inodes_percent",
        reason=f"{free:.1f} % of the inodes are free, the minimum is {minimum:g}",
        fix=f"remove small files below {path}, or lower node_health_disk_min_free_inodes_percent",
    )


def _writable(path: str, root: str) -> Finding:
    """Check the mount of the path: the deepest one, and the last of several on one mount point."""
    read_only = {point: is_read_only for point, _, is_read_only in mounts(root)}
    parents = [path, *(str(parent) for parent in PurePosixPath(path).parents)]
    point = next((name for name in parents if name in read_only), "/")
    return finding(
        "writable",
        FAIL if read_only.get(point) else PASS,
        device=path,
        expected="writable",
        found="read-only" if read_only.get(point) else "writable",
        source="mountinfo",
        reason=f"{point} is mounted read-only",
        fix="see `journalctl -k` for the disk error; check the file system, then reboot",
    )


if __name__ == "__main__":
    serve(check)
