# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Restore accounts and groups. An account that owns kept data stays, locked, so that its uid is not given to another account."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ansible.module_utils import origin_record
from ansible.module_utils.safe_files import UnsafePathError, open_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ansible.module_utils.origin_record import Origin
    from ansible.module_utils.reset_host import Host
    from ansible.module_utils.safe_files import Folder

MAY_BE_OLDER = "it may have existed before the first apply"
# Exit code of userdel(8) if the account is logged in or has processes, and of groupdel(8) if the group is a primary group.
IN_USE = 8
KEYS = "authorized_keys"


def restore_accounts(host: Host, origin: Origin, names: Iterable[str], owners: Iterable[str], *, delete_homes: bool) -> None:
    """Remove accounts that are new; restore shell, comment, home and groups of the others.

    Args:
        host: The host.
        origin: Its original state.
        names: The accounts of the role.
        owners: Those that own kept data.
        delete_homes: Whether to delete home folders that the role created.
    """
    here = origin_record.entries(host, "passwd")
    for name in names:
        if name not in here:
            origin_record.drop_kept(host, "accounts", name)
        elif name in owners:
            host.kept(f"account {name}", "it owns data that were kept", "reset again with --delete-data")
            origin_record.add_kept(host, "accounts", [name])
            origin_record.add_kept(host, "groups", [name])
            _lock(host, name)
        elif name in origin.accounts:
            _restore(host, origin, here[name], origin.accounts[name])
        elif origin.complete or name in origin_record.load_kept(host)["accounts"]:
            _remove(host, origin, here[name], delete_home=delete_homes)
        elif host.diffs:
            host.kept(f"account {name}", MAY_BE_OLDER, f"userdel {name}, if it is not needed")


def restore_groups(host: Host, origin: Origin, names: Iterable[str], owners: Iterable[str]) -> None:
    """Remove groups that are new, except those of owners of kept data; restore the members of the others."""
    here = origin_record.entries(host, "group")
    kept = origin_record.load_kept(host)["groups"]
    for name in names:
        if name in owners:
            continue
        if name not in here:
            origin_record.drop_kept(host, "groups", name)
        elif name in origin.groups:
            members, before = here[name].split(":")[3], origin.groups[name].split(":")[3]
            if members != before:
                host.run_change(f"members of {name}", members, before, ["gpasswd", "-M", before, name], fix="see the group in /etc/group")
        elif origin.complete or name in kept:
            _remove_group(host, name)
        elif host.diffs:
            host.kept(f"group {name}", MAY_BE_OLDER, f"groupdel {name}, if it is not needed")


def restore_keys(host: Host, origin: Origin, names: Iterable[str]) -> None:
    """Restore authorized_keys of these accounts. Users own these folders, so no step follows a link.

    Args:
        host: The host.
        origin: Its original state.
        names: The accounts whose authorized_keys the role writes.
    """
    here = origin_record.entries(host, "passwd")
    for name in names:
        if name not in here:
            continue
        uid, home = int(here[name].split(":")[2]), here[name].split(":")[5].rstrip("/")
        try:
            with open_folder(host.at(home), owner=uid) as above, above.folder(".ssh", owner=uid) as folder:
                _restore_keys(host, origin, f"{home}/.ssh/{KEYS}", folder)
        except FileNotFoundError:
            continue
        except UnsafePathError as error:
            host.fail(error.path, error.problem, f"check that path; the keys of {name} are unchanged; then reset again")


def _restore_keys(host: Host, origin: Origin, path: str, folder: Folder) -> None:
    exists, before = KEYS in folder.names(), origin.existed(path)
    if before:
        copy = origin_record.copied(host, path)
        if copy is None or not copy[0].isreg():
            host.kept(path, "it existed before, and the record has no copy of it")
            return
        info, content = copy
        if exists and folder.read(KEYS) == content:
            return
        host.changed(path, "content of the role", "original content")
        if not host.check:
            folder.write(KEYS, content, mode=info.mode, owner=info.uid, group=info.gid)
    elif exists and before is False:
        host.changed(path, "present", "removed")
        if not host.check:
            folder.remove(KEYS)
    elif exists and host.diffs:
        host.kept(path, "its original content is unknown", "remove the keys that are not needed")


def recreate_owners(host: Host, data: Iterable[Mapping[str, str]], before: Mapping[str, str]) -> None:
    """Create an owner of kept data again if its package removed it, with the uid and gid of the files."""
    for item in data:
        name, folder = item["account"], host.at(item["path"])
        if not name or name in origin_record.entries(host, "passwd") or not folder.exists() or host.check:
            continue
        known = before.get(name, "").split(":")
        uid, gid = (known[2], known[3]) if len(known) > 3 else (str(folder.stat().st_uid), str(folder.stat().st_gid))
        if uid == "0":
            continue
        fix = f"create an account that owns {item['path']}"
        if name not in origin_record.entries(host, "group"):
            host.run_change(f"group {name}", "removed with its package", gid, ["groupadd", "--system", "--gid", gid, name], fix=fix)
        argv = [
            "useradd",
            "--system",
            "--uid",
            uid,
            "--gid",
            gid,
            "--home-dir",
            item["path"],
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            name,
        ]
        host.run_change(f"account {name}", "removed with its package", uid, argv, fix=fix)


def _lock(host: Host, name: str) -> None:
    status, state = host.run(["passwd", "--status", name])
    if not status and state.split()[1:2] not in (["L"], ["LK"]):
        host.run_change(
            f"account {name}", "has a password", "locked", ["usermod", "--password", "!", name], fix=f"usermod --password '!' {name}"
        )


def _restore(host: Host, origin: Origin, now: str, before: str) -> None:
    name, _, _, gid, comment, home, shell = before.split(":")
    if now != before:
        argv = ["usermod", "--gid", gid, "--comment", comment, "--home", home, "--shell", shell, name]
        host.run_change(f"account {name}", now, before, argv, fix=f"see `{' '.join(argv)}`")
    for group, line in origin_record.entries(host, "group").items():
        member, was = (name in text.split(":")[3].split(",") for text in (line, origin.groups.get(group, ":::")))
        if member and not was and group in origin.groups:
            host.run_change(
                f"account {name}", f"in the group {group}", "not in it", ["gpasswd", "-d", name, group], fix=f"gpasswd -d {name} {group}"
            )


def _remove(host: Host, origin: Origin, line: str, *, delete_home: bool) -> None:
    name, uid, home = (line.split(":")[number] for number in (0, 2, 5))
    if not host.check:
        host.run(["loginctl", "terminate-user", name])
        host.run(["pkill", "-KILL", "-U", uid])
    if not host.run_change(f"account {name}", "present", "removed", ["userdel", name], fix=f"end its processes: pkill -U {uid}"):
        return
    origin_record.drop_kept(host, "accounts", name)
    folder = host.at(home)
    if not folder.is_dir() or origin.existed(home) is not False:
        return
    if delete_home and str(folder.stat().st_uid) == uid and not os.path.ismount(folder):
        host.remove(home)
        host.remove(f"/var/mail/{name}")
    else:
        origin_record.add_kept(host, "data", [home])
        host.kept(home, f"home folder of {name}", "reset with --delete-data, or remove it by hand")


def _remove_group(host: Host, name: str) -> None:
    status, output = (0, "") if host.check else host.run(["groupdel", name])
    if status == IN_USE:
        host.kept(f"group {name}", "it is the primary group of an account", f"groupdel {name}, once that account is gone")
    elif status:
        host.fail(f"group {name}", output, f"groupdel {name}")
    else:
        host.changed(f"group {name}", "present", "removed")
        origin_record.drop_kept(host, "groups", name)
