# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Create a tree of folders on shared storage and set owners and modes, without following links.

A tree is a dict:
    root: absolute path of the folder that contains the others. Root must own everything above it.
    root_mode: mode of the root folder, whose owner becomes root; missing = the root folder is not changed.
    create: create a missing root folder.
    mounted: the root folder must be a mount point. Nothing is changed below a file system that is not mounted.
    folders: list of {path, owner, group, mode, adopt}. `path` is relative to root, parents first. Owner and group default to root.
        `adopt` (false) changes the owner of a folder of another account; in older releases users owned folders of the cluster.
        `unless_mounted` (false) skips a mount point.
    homes: accounts as in users_groups_accounts; each that is not absent gets a folder home/NAME with mode 0700.
    homes_in, homes_mode: another folder than home, and another mode.
    shared: names of folders in which all members of `shared_group` can add files, and remove only their own.
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
    """Return the uid of an account or the gid of a group.

    Raises:
        KeyError: This host has none of that name.
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
    """Return the problem with account names instead of uids, and its fix."""
    text = _UID.sub(lambda found: account_of(int(found[1])), error.problem)
    fix = f"check it (ls -ld {error.path}); if it is not needed, `mv {error.path} {error.path}.refused` as root, and apply again"
    return {"path": error.path, "problem": text, "fix": fix}


def all_folders(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every folder of the tree, parents first: `folders`, `homes` and `shared`."""
    within, mode = tree.get("homes_in", HOMES), tree.get("homes_mode", "0700")
    homes = [
        {"path": f"{within}/{one['name']}", "owner": one["name"], "group": one.get("group", tree["shared_group"]), "mode": mode}
        for one in tree.get("homes", ())
        if one.get("state") != "absent"
    ]
    # Setgid and sticky: files belong to the group, and only their owner can remove them.
    shared = [
        {"path": name, "owner": "root", "group": tree["shared_group"], "mode": "3775", "adopt": True} for name in tree.get("shared", ())
    ]
    default = {"owner": "root", "group": "root", "adopt": False}
    return [{**default, **one} for one in [*tree.get("folders", ()), *homes, *shared]]


class TreeWalk:
    """Compares all folders, and changes them unless `check`."""

    def __init__(self, tree: dict[str, Any], *, check: bool) -> None:
        """Store the tree."""
        self.tree, self.check = tree, check
        self.paths = {f"{tree['root'].rstrip('/')}/{one['path']}" for one in all_folders(tree)}
        self.problems: list[Problem] = []
        self.differing: list[str] = []

    def run(self) -> None:
        """Process the root folder and every folder below it."""
        try:
            root = open_folder(self.tree["root"], create=bool(self.tree.get("create")) and not self.check)
        except FileNotFoundError:
            path = self.tree["root"]
            if self.tree.get("create"):
                self.differing.append(path)
            else:
                self.problems.append({"path": path, "problem": "does not exist", "fix": "mount the shared storage on this host"})
            return
        except UnsafePathError as error:
            self.problems.append(problem_of(error))
            return
        with root:
            if self.tree.get("mounted") and not mounted(root):
                fix = f"mount it: `findmnt {root.path}` shows nothing, its unit's log has the reason"
                self.problems.append({"path": root.path, "problem": "has nothing mounted on it", "fix": fix})
                return
            self._process_root(root)
            for folder in all_folders(self.tree):
                try:
                    self._process(root, folder)
                except UnsafePathError as error:
                    found = problem_of(error)
                    if found not in self.problems:
                        self.problems.append(found)

    def _process_root(self, root: Folder) -> None:
        mode = int(self.tree.get("root_mode") or "0", 8)
        found = os.fstat(root.descriptor)
        if not mode or (found.st_uid, found.st_gid, root.mode) == (0, 0, mode):
            return
        self.differing.append(root.path)
        if not self.check:
            os.fchown(root.descriptor, 0, 0)
            os.fchmod(root.descriptor, mode)

    def _process(self, root: Folder, folder: dict[str, Any]) -> None:
        """Create or change one folder. Its parents are opened one after the other, and only root may have write access to them."""
        *parents, name = PurePosixPath(folder["path"]).parts
        owner = number_of(folder["owner"], group=False)
        group = number_of(folder["group"], group=True)
        current, opened = root, []
        try:
            for parent in parents:
                current = current.folder(parent)
                opened.append(current)
                if not self.check or current.path not in self.paths:
                    current.check_parent()
            if folder.get("unless_mounted") and self._is_mount(current, name):
                return
            differs = current.make_folder(
                name, owner=owner, group=group, mode=int(folder["mode"], 8), adopt=folder["adopt"], check=self.check
            )
        except FileNotFoundError:
            differs = True  # in check mode, a parent that does not exist yet
        finally:
            for one in reversed(opened):
                one.close()
        if differs:
            self.differing.append(f"{root.path}/{folder['path']}")

    def _is_mount(self, parent: Folder, name: str) -> bool:
        try:
            with parent.folder(name) as found:
                return mounted(found)
        except FileNotFoundError:
            return False


def mounted(folder: Folder) -> bool:
    """Return whether a folder is on another file system than its parent."""
    above = os.stat("..", dir_fd=folder.descriptor)
    return above.st_dev != os.fstat(folder.descriptor).st_dev


def apply_tree(tree: dict[str, Any], *, check: bool) -> tuple[list[Problem], list[str]]:
    """Return problems and the folders that differ; change the folders unless `check`, and only if there is no problem."""
    compare = TreeWalk(tree, check=True)
    compare.run()
    if compare.problems or check:
        return compare.problems, compare.differing
    change = TreeWalk(tree, check=False)
    change.run()
    return change.problems, change.differing
