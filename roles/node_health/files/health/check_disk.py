"""Is there room, are there inodes, and can the file system be written? One path a call; nothing is written to find out."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from finding import FAIL, PASS, SKIPPED, finding, mounts, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from finding import Finding, Settings

GIB = 1 << 30


def judge(settings: Settings) -> Iterator[Finding]:
    """Judge one path; `min_free_gib` (GiB) and `min_free_inodes_percent` are the thresholds."""
    path, root = settings["path"], settings.get("root", "/")
    try:
        state = os.statvfs(os.path.join(root, path.lstrip("/")))  # noqa: PTH118 (a path of its own below root)
    except FileNotFoundError:
        yield finding("disk", SKIPPED, device=path, reason=f"there is no {path} on this host")
        return
    except OSError as error:  # EIO, ESHUTDOWN, ESTALE: it is there and does not work
        fix = "see `journalctl -k` for the disk error behind it; check the disk, then the file system"
        yield finding(
            "disk", FAIL, device=path, expected="answers", found=error.strerror, reason=f"{path} does not work: {error.strerror}", fix=fix
        )
        return
    least = settings["min_free_gib"]
    free_gib = state.f_bavail * state.f_frsize / GIB
    yield finding(
        "disk",
        PASS if free_gib >= least else FAIL,
        device=path,
        expected=f">= {least:g}",
        found=f"{free_gib:.2f}",
        unit="GiB",
        source="node_health_disk_min_free_gib",
        reason=f"{free_gib:.2f} GiB free, {least:g} are needed",
        fix=f"free space below {path}, or lower node_health_disk_min_free_gib",
    )
    # btrfs and some network file systems have no fixed number of inodes and say 0.
    if state.f_files:
        yield _inodes(path, 100 * state.f_favail / state.f_files, settings["min_free_inodes_percent"])
    yield _writable(path, root)


def _inodes(path: str, free: float, least: float) -> Finding:
    return finding(
        "inodes",
        PASS if free >= least else FAIL,
        device=path,
        expected=f">= {least:g}",
        found=f"{free:.1f}",
        unit="percent",
        source="node_health_disk_min_free_inodes_percent",
        reason=f"{free:.1f} % of the inodes are free, {least:g} are needed",
        fix=f"remove small files below {path}, or lower node_health_disk_min_free_inodes_percent",
    )


def _writable(path: str, root: str) -> Finding:
    """Find the mount that holds the path: the deepest one, and of several on one point the last."""
    holders = {point: read_only for point, _, read_only in mounts(root)}
    above = [path, *(str(parent) for parent in PurePosixPath(path).parents)]
    point = next((name for name in above if name in holders), "/")
    return finding(
        "writable",
        FAIL if holders.get(point) else PASS,
        device=path,
        expected="writable",
        found="read-only" if holders.get(point) else "writable",
        source="mountinfo",
        reason=f"{point} is mounted read-only",
        fix="see `journalctl -k` for the disk error behind it; check the file system, then reboot",
    )


if __name__ == "__main__":
    serve(judge)
