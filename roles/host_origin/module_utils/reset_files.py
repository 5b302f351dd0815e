# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Restore files and folders: remove those of a role; restore content, owner and mode of the others."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from ansible.module_utils import origin_record
from ansible.module_utils.host_files import replace_file, replace_link

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from ansible.module_utils.origin_record import Origin
    from ansible.module_utils.reset_host import Host

ASIDE_SUFFIX = ".primus-kept"
BLOCK = r"(?s)# BEGIN primus-bootstrap\n.*?# END primus-bootstrap\n"
SWAP_OFF = r"(?m)^# off by primus-bootstrap: "


def restore_files(host: Host, origin: Origin, ours: Iterable[str], others: Iterable[str], pending: Sequence[str]) -> None:
    """Remove files and folders of a role, and restore files that it replaced.

    Args:
        host: The host.
        origin: Its original state.
        ours: Paths of primus-bootstrap only: removed if the record does not tell.
        others: Paths that can belong to others: kept if the record does not tell.
        pending: Names of commands to mark as pending before something changes.
    """
    for path, is_ours in [*((path, True) for path in ours), *((path, False) for path in others)]:
        before = origin.existed(path)
        if before:
            _restore(host, path, pending)
        elif not host.exists(path):
            continue
        elif before is False or is_ours:
            _mark(host, pending)
            host.remove(path)
        elif host.diffs:
            host.kept(path, "its original content is unknown", "reinstall the package that owns it, if needed")


def _mark(host: Host, pending: Iterable[str]) -> None:
    for name in pending:
        host.mark_pending(name)


def _restore(host: Host, path: str, pending: Iterable[str]) -> None:
    copy = origin_record.copied(host, path)
    if copy is None:
        if host.exists(path) and not host.at(path).is_dir():
            host.kept(path, "it existed before, and the record has no copy of it")
        return
    info, content = copy
    if _same(host.at(path), info, content):
        return
    _mark(host, pending)
    host.changed(path, "content of the role", "original content")
    if not host.check:
        _place(host.at(path), info, content)


def _same(target: Path, info: tarfile.TarInfo, content: bytes) -> bool:
    try:
        found = target.lstat()
    except FileNotFoundError:
        return False
    if info.issym():
        return stat.S_ISLNK(found.st_mode) and str(target.readlink()) == info.linkname
    owner = (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))
    return stat.S_ISREG(found.st_mode) and owner == (info.uid, info.gid, info.mode) and target.read_bytes() == content


def _place(target: Path, info: tarfile.TarInfo, content: bytes) -> None:
    if info.issym():
        replace_link(target, info.linkname)
    else:
        replace_file(target, content, mode=info.mode, owner=(info.uid, info.gid))


def remove_marked_text(host: Host, origin: Origin, blocks: Iterable[str], *, swap: bool) -> None:
    """Remove the marked block from shared files, and uncomment the swap areas in /etc/fstab."""
    for path in blocks:
        _rewrite(host, origin, path, BLOCK)
    if not swap:
        return
    _rewrite(host, origin, "/etc/fstab", SWAP_OFF)
    on = len(host.read("/proc/swaps").splitlines()) > 1
    if origin.swap and not on:
        host.run_change("swap", "off", "on", ["swapon", "--all"], fix="correct the swap area in /etc/fstab that cannot be used")


def _rewrite(host: Host, origin: Origin, path: str, pattern: str) -> None:
    text = host.read(path)
    rest = re.sub(pattern, "", text)
    if rest == text:
        return
    host.changed(path, "with lines of primus-bootstrap", "without them")
    if host.check:
        return
    if not rest and origin.existed(path) is False:
        host.at(path).unlink()
    else:
        host.at(path).write_text(rest, encoding="utf-8")


def remove_empty_folders(host: Host, origin: Origin, folders: Iterable[str]) -> None:
    """Remove folders that a role created, if they are empty."""
    for path in folders:
        target = host.at(path)
        if origin.existed(path) is False and target.is_dir() and not os.path.ismount(target) and not any(target.iterdir()):
            host.remove(path)


def move_data_aside(host: Host, data: Iterable[Mapping[str, str]]) -> bool:
    """Move data aside before a package is removed, because its removal would delete them; return whether all could be moved."""
    moved = True
    for path in (item["path"] for item in data):
        target, aside = host.at(path), host.at(path + ASIDE_SUFFIX)
        if not target.is_dir() or host.check:
            continue
        if os.path.ismount(target) or os.path.lexists(aside):
            moved = False
        else:
            target.rename(aside)
    return moved


def return_data(host: Host, data: Iterable[Mapping[str, str]]) -> None:
    """Move data back that this run or an interrupted one has moved aside."""
    for path in (item["path"] for item in data):
        target, aside = host.at(path), host.at(path + ASIDE_SUFFIX)
        if host.check or not os.path.lexists(aside):
            continue
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        if os.path.lexists(target):
            host.fail(path, f"it exists, and so does the copy moved aside to {aside}", "delete one of the two, then reset again")
        else:
            aside.rename(target)


def keep_or_delete_data(host: Host, origin: Origin, data: Iterable[Mapping[str, str]], *, delete: bool) -> None:
    """Delete data, or keep and report them. Data that existed before the first apply are always kept."""
    for item in data:
        path = item["path"]
        ours = path in origin_record.load_kept(host)["data"] or origin.existed(path) is False
        if not host.exists(path):
            origin_record.drop_kept(host, "data", path)
        elif delete and ours:
            host.remove(path)
            origin_record.drop_kept(host, "data", path)
        elif delete:
            host.kept(path, "it may have existed before the first apply", f"rm -r {path}, if it is not needed")
        else:
            origin_record.add_kept(host, "data", [path] if ours else [])
            host.kept(path, "data", "reset again with --delete-data, if they are not needed")
