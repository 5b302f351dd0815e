# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Files and folders, put back: ours go, those of others get the content, owner and mode that they had."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils import origin_record

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterable, Mapping, Sequence

    from ansible.module_utils.origin_record import Origin
    from ansible.module_utils.reset_host import Host

ASIDE = ".primus-kept"
BLOCK = r"(?s)# BEGIN primus-bootstrap\n.*?# END primus-bootstrap\n"
SWAP_OFF = r"(?m)^# off by primus-bootstrap: "


def put_files_back(host: Host, origin: Origin, ours: Iterable[str], others: Iterable[str], tell: Sequence[str]) -> None:
    """Put back files and folders that a role brought, and files of others that it replaced.

    Args:
        host: Where.
        origin: What was there before.
        ours: Paths that bear our name or that no package has: where nothing is known of before, they go.
        others: Paths that may have been there before: where nothing is known, they stay.
        tell: Marks to set before something is changed.
    """
    for path, is_ours in [*((path, True) for path in ours), *((path, False) for path in others)]:
        before = origin.was_there(path)
        if before:
            _restore(host, path, tell)
        elif not host.there(path):
            continue
        elif before is False or is_ours:
            _mark(host, tell)
            host.remove(path)
        elif host.diffs:
            host.kept(path, "what it held before is not known", "reinstall the package that owns it, if it matters")


def _mark(host: Host, tell: Iterable[str]) -> None:
    for name in tell:
        host.mark(name)


def _restore(host: Host, path: str, tell: Iterable[str]) -> None:
    copy = origin_record.copied(host, path)
    if copy is None:
        if host.there(path) and not host.at(path).is_dir():
            host.kept(path, "was there before, and no copy of it was taken")
        return
    info, content = copy
    if _same(host.at(path), info, content):
        return
    _mark(host, tell)
    host.changed(path, "as a role left it", "as before")
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
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=".primus-"))
    fresh = folder / "new"
    try:
        if info.issym():
            fresh.symlink_to(info.linkname)
        else:
            fresh.write_bytes(content)
            os.chown(fresh, info.uid, info.gid)
            fresh.chmod(info.mode)
        fresh.replace(target)
    except OSError as error:
        # A container's /etc/hosts is a mount and cannot be replaced, only rewritten.
        if error.errno != errno.EBUSY:
            raise
        target.write_bytes(content)
    finally:
        shutil.rmtree(folder)


def put_texts_back(host: Host, origin: Origin, blocks: Iterable[str], *, swap: bool) -> None:
    """Take our marked block out of files that others write as well, and our marks off the swap areas."""
    for path in blocks:
        _rewrite(host, origin, path, BLOCK)
    if not swap:
        return
    _rewrite(host, origin, "/etc/fstab", SWAP_OFF)
    on = len(host.read("/proc/swaps").splitlines()) > 1
    if origin.swap and not on:
        host.do("swap", "off", "on", ["swapon", "--all"], fix="look at /etc/fstab: an area that it names cannot be used")


def _rewrite(host: Host, origin: Origin, path: str, pattern: str) -> None:
    text = host.read(path)
    rest = re.sub(pattern, "", text)
    if rest == text:
        return
    host.changed(path, "with lines of primus-bootstrap", "without")
    if host.check:
        return
    if not rest and origin.was_there(path) is False:
        host.at(path).unlink()
    else:
        host.at(path).write_text(rest, encoding="utf-8")


def remove_empty_folders(host: Host, origin: Origin, folders: Iterable[str]) -> None:
    """Remove folders that a role made, where nothing else has been put into them."""
    for path in folders:
        target = host.at(path)
        if origin.was_there(path) is False and target.is_dir() and not os.path.ismount(target) and not any(target.iterdir()):
            host.remove(path)


def set_data_aside(host: Host, data: Iterable[Mapping[str, str]]) -> bool:
    """Move data out of the way of a package's removal, which would take them along; return whether all of them could be moved."""
    moved = True
    for path in (one["path"] for one in data):
        target, aside = host.at(path), host.at(path + ASIDE)
        if not target.is_dir() or host.check:
            continue
        if os.path.ismount(target) or os.path.lexists(aside):
            moved = False
        else:
            target.rename(aside)
    return moved


def bring_data_back(host: Host, data: Iterable[Mapping[str, str]]) -> None:
    """Move data back that were set aside, by this run or by one that was killed."""
    for path in (one["path"] for one in data):
        target, aside = host.at(path), host.at(path + ASIDE)
        if host.check or not os.path.lexists(aside):
            continue
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        if os.path.lexists(target):
            host.broke(path, f"it is there again, and so is what was set aside in {aside}", "keep one of the two by hand, then reset again")
        else:
            aside.rename(target)


def settle_data(host: Host, origin: Origin, data: Iterable[Mapping[str, str]], *, delete: bool) -> None:
    """Delete data, or keep them and say where they are; data that were there before the first role are always kept."""
    for one in data:
        path = one["path"]
        ours = path in origin_record.load_kept(host)["data"] or origin.was_there(path) is False
        if not host.there(path):
            origin_record.drop_kept(host, "data", path)
        elif delete and ours:
            host.remove(path)
            origin_record.drop_kept(host, "data", path)
        elif delete:
            host.kept(path, "it may have been there before the first apply", f"remove it by hand if it is not needed: rm -r {path}")
        else:
            origin_record.add_kept(host, "data", [path] if ours else [])
            host.kept(path, "data", "reset again with --delete-data, if they are not needed")
