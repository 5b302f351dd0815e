# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""A tree of folders on shared storage: what each must be, what is wrong, and how it is brought to its form; never through a link.

A tree is a dict:
    root: an absolute path, below which the folders lie. Everything above it must be root's.
    root_mode: what the root itself is brought to, with root as its owner; left out = it is only opened.
    create: make a root that is missing.
    mounted: the root must be a mount point. What lies under a file system that is not mounted is never touched.
    folders: list of {path, owner, group, mode, adopt}. `path` is relative to root, parents first. Owner and group are by default root.
        `adopt` (false) takes a folder over that another account owns; older releases let users own folders of the cluster.
        `unless_mounted` (false) leaves a mount point as it is.
    homes: accounts as in users_groups_accounts; each that is not absent gets a folder of its own, home/NAME with mode 0700.
    homes_in, homes_mode: another folder than home, and another mode.
    shared: names of folders in which all accounts of `shared_group` may add files, and remove their own.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
from pathlib import PurePosixPath
from typing import Any

from ansible.module_utils.safe_files import Folder, UnsafePathError, open_folder

Problem = dict
HOMES = "home"  # below the root
_UID = re.compile(r"\buid (\d+)")


def number_of(name: str, *, group: bool) -> int:
    """Return the number of an account or a group.

    Raises:
        KeyError: This host knows none of that name.
    """
    if name.isdecimal():
        return int(name)
    return grp.getgrnam(name).gr_gid if group else pwd.getpwnam(name).pw_uid


def account_of(number: int) -> str:
    """Return the name of an account, or `uid N` if it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"uid {number}"


def problem_of(error: UnsafePathError) -> Problem:
    """Return the problem, with account names instead of uids, and the fix."""
    text = _UID.sub(lambda found: account_of(int(found[1])), error.problem)
    fix = f"look at it (ls -ld {error.path}); if nothing there is needed, `mv {error.path} {error.path}.refused` as root, and apply again"
    return {"path": error.path, "problem": text, "fix": fix}


def all_folders(wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every folder that is wanted, parents first: those of the cluster, homes, and those that accounts share."""
    within, mode = wanted.get("homes_in", HOMES), wanted.get("homes_mode", "0700")
    homes = [
        {"path": f"{within}/{one['name']}", "owner": one["name"], "group": one.get("group", wanted["shared_group"]), "mode": mode}
        for one in wanted.get("homes", ())
        if one.get("state") != "absent"
    ]
    # Setgid and sticky: files belong to the group, and only their owner removes them.
    shared = [
        {"path": name, "owner": "root", "group": wanted["shared_group"], "mode": "3775", "adopt": True} for name in wanted.get("shared", ())
    ]
    usual = {"owner": "root", "group": "root", "adopt": False}
    return [{**usual, **one} for one in [*wanted.get("folders", ()), *homes, *shared]]


class Look:
    """Goes over all folders, with or without changing them."""

    def __init__(self, wanted: dict[str, Any], *, check: bool) -> None:
        """Keep what is wanted."""
        self.wanted, self.check = wanted, check
        self.stated = {f"{wanted['root'].rstrip('/')}/{one['path']}" for one in all_folders(wanted)}
        self.problems: list[Problem] = []
        self.differing: list[str] = []

    def run(self) -> None:
        """Look at the root and at every folder."""
        try:
            root = open_folder(self.wanted["root"], create=bool(self.wanted.get("create")) and not self.check)
        except FileNotFoundError:
            path = self.wanted["root"]
            if self.wanted.get("create"):
                self.differing.append(path)
            else:
                self.problems.append({"path": path, "problem": "is not there", "fix": "mount the shared storage on this host"})
            return
        except UnsafePathError as error:
            self.problems.append(problem_of(error))
            return
        with root:
            if self.wanted.get("mounted") and not mounted(root):
                self.problems.append({"path": root.path, "problem": "has nothing mounted on it", "fix": "see why its mount is not there"})
                return
            self._root(root)
            for folder in all_folders(self.wanted):
                try:
                    self._one(root, folder)
                except UnsafePathError as error:
                    found = problem_of(error)
                    if found not in self.problems:
                        self.problems.append(found)

    def _root(self, root: Folder) -> None:
        mode = int(self.wanted.get("root_mode") or "0", 8)
        found = os.fstat(root.descriptor)
        if not mode or (found.st_uid, found.st_gid, root.mode) == (0, 0, mode):
            return
        self.differing.append(root.path)
        if not self.check:
            os.fchown(root.descriptor, 0, 0)
            os.fchmod(root.descriptor, mode)

    def _one(self, root: Folder, folder: dict[str, Any]) -> None:
        """Bring one folder to its form; its parents are opened one after the other, and only root may be able to change them."""
        *parents, name = PurePosixPath(folder["path"]).parts
        owner = number_of(folder["owner"], group=False)
        group = number_of(folder["group"], group=True)
        here, way = root, []
        try:
            for parent in parents:
                here = here.folder(parent)
                way.append(here)
                if not self.check or here.path not in self.stated:
                    here.check_parent()
            if folder.get("unless_mounted") and self._is_mount(here, name):
                return
            differs = here.make_folder(name, owner=owner, group=group, mode=int(folder["mode"], 8), adopt=folder["adopt"], check=self.check)
        except FileNotFoundError:
            differs = True  # in check mode, a parent that is still to come
        finally:
            for one in reversed(way):
                one.close()
        if differs:
            self.differing.append(f"{root.path}/{folder['path']}")

    def _is_mount(self, here: Folder, name: str) -> bool:
        try:
            with here.folder(name) as found:
                return mounted(found)
        except FileNotFoundError:
            return False


def mounted(folder: Folder) -> bool:
    """Say whether a folder is another file system than the one above it."""
    above = os.stat("..", dir_fd=folder.descriptor)
    return above.st_dev != os.fstat(folder.descriptor).st_dev


def bring(wanted: dict[str, Any], *, check: bool) -> tuple[list[Problem], list[str]]:
    """Return what is wrong and which folders differ; unless `check`, and with nothing wrong, bring them to their form."""
    look = Look(wanted, check=True)
    look.run()
    if look.problems or check:
        return look.problems, look.differing
    act = Look(wanted, check=False)
    act.run()
    return act.problems, act.differing
