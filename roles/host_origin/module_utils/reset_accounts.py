# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Accounts and groups, put back. An account that owns data which stay is kept, locked: its number must not go to somebody else."""

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

NOT_KNOWN = "it may have been there before the first apply"
# userdel(8), groupdel(8): the account is logged in or runs something; the group is the primary one of an account.
IN_USE = 8
KEYS = "authorized_keys"


def put_accounts_back(host: Host, origin: Origin, names: Iterable[str], owners: Iterable[str], *, delete_homes: bool) -> None:
    """Remove accounts that were not there before; give the others back their shell, comment, home and groups.

    Args:
        host: Where.
        origin: What was there before.
        names: The accounts that the role brings.
        owners: Those of them that own data which stay.
        delete_homes: Whether home folders that the role made go too.
    """
    here = origin_record.entries(host, "passwd")
    for name in names:
        if name not in here:
            origin_record.drop_kept(host, "accounts", name)
        elif name in owners:
            host.kept(f"account {name}", "it owns data that stay", "reset again with --delete-data")
            origin_record.add_kept(host, "accounts", [name])
            origin_record.add_kept(host, "groups", [name])
            _lock(host, name)
        elif name in origin.accounts:
            _restore(host, origin, here[name], origin.accounts[name])
        elif origin.complete or name in origin_record.load_kept(host)["accounts"]:
            _remove(host, origin, here[name], delete_home=delete_homes)
        elif host.diffs:
            host.kept(f"account {name}", NOT_KNOWN, f"userdel {name}, if it is not needed")


def put_groups_back(host: Host, origin: Origin, names: Iterable[str], owners: Iterable[str]) -> None:
    """Remove groups that were not there before, but not those of owners of data that stay; give the others back their members."""
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
                host.do(f"members of {name}", members, before, ["gpasswd", "-M", before, name], fix="see the group in /etc/group")
        elif origin.complete or name in kept:
            _remove_group(host, name)
        elif host.diffs:
            host.kept(f"group {name}", NOT_KNOWN, f"groupdel {name}, if it is not needed")


def put_keys_back(host: Host, origin: Origin, names: Iterable[str]) -> None:
    """Put back the keys that may log in to these accounts. Users own these folders, so nothing here follows a link.

    Args:
        host: Where.
        origin: What was there before.
        names: The accounts whose authorized_keys the role writes.
    """
    here = origin_record.entries(host, "passwd")
    for name in names:
        if name not in here:
            continue
        uid, home = int(here[name].split(":")[2]), here[name].split(":")[5].rstrip("/")
        try:
            with open_folder(host.at(home), owner=uid) as above, above.folder(".ssh", owner=uid) as folder:
                _put_keys_back(host, origin, f"{home}/.ssh/{KEYS}", folder)
        except FileNotFoundError:
            continue
        except UnsafePathError as error:
            host.broke(error.path, error.problem, f"look at it: the keys of {name} were left as they are; then reset again")


def _put_keys_back(host: Host, origin: Origin, path: str, folder: Folder) -> None:
    there, before = KEYS in folder.names(), origin.was_there(path)
    if before:
        copy = origin_record.copied(host, path)
        if copy is None or not copy[0].isreg():
            host.kept(path, "was there before, and no copy of it was taken")
            return
        info, content = copy
        if there and folder.read(KEYS) == content:
            return
        host.changed(path, "as a role left it", "as before")
        if not host.check:
            folder.write(KEYS, content, mode=info.mode, owner=info.uid, group=info.gid)
    elif there and before is False:
        host.changed(path, "is there", "removed")
        if not host.check:
            folder.remove(KEYS)
    elif there and host.diffs:
        host.kept(path, "what it held before is not known", "remove the keys that are not needed")


def keep_owners(host: Host, data: Iterable[Mapping[str, str]], before: Mapping[str, str]) -> None:
    """Bring an owner of data back that went with its package, with the numbers that the files carry."""
    for one in data:
        name, folder = one["account"], host.at(one["path"])
        if not name or name in origin_record.entries(host, "passwd") or not folder.exists() or host.check:
            continue
        known = before.get(name, "").split(":")
        uid, gid = (known[2], known[3]) if len(known) > 3 else (str(folder.stat().st_uid), str(folder.stat().st_gid))
        if uid == "0":
            continue
        fix = f"give {one['path']} an owner by hand"
        if name not in origin_record.entries(host, "group"):
            host.do(f"group {name}", "gone with its package", gid, ["groupadd", "--system", "--gid", gid, name], fix=fix)
        argv = [
            "useradd",
            "--system",
            "--uid",
            uid,
            "--gid",
            gid,
            "--home-dir",
            one["path"],
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            name,
        ]
        host.do(f"account {name}", "gone with its package", uid, argv, fix=fix)


def _lock(host: Host, name: str) -> None:
    status, state = host.run(["passwd", "--status", name])
    if not status and state.split()[1:2] not in (["L"], ["LK"]):
        host.do(f"account {name}", "has a password", "locked", ["usermod", "--password", "!", name], fix=f"usermod --password '!' {name}")


def _restore(host: Host, origin: Origin, now: str, before: str) -> None:
    name, _, _, gid, comment, home, shell = before.split(":")
    if now != before:
        argv = ["usermod", "--gid", gid, "--comment", comment, "--home", home, "--shell", shell, name]
        host.do(f"account {name}", now, before, argv, fix=f"see `{' '.join(argv)}`")
    for group, line in origin_record.entries(host, "group").items():
        member, was = (name in text.split(":")[3].split(",") for text in (line, origin.groups.get(group, ":::")))
        if member and not was and group in origin.groups:
            host.do(
                f"account {name}", f"in the group {group}", "as before", ["gpasswd", "-d", name, group], fix=f"gpasswd -d {name} {group}"
            )


def _remove(host: Host, origin: Origin, line: str, *, delete_home: bool) -> None:
    name, uid, home = (line.split(":")[number] for number in (0, 2, 5))
    if not host.check:
        host.run(["loginctl", "terminate-user", name])
        host.run(["pkill", "-KILL", "-U", uid])
    if not host.do(f"account {name}", "is there", "removed", ["userdel", name], fix=f"end its processes: pkill -U {uid}"):
        return
    origin_record.drop_kept(host, "accounts", name)
    folder = host.at(home)
    if not folder.is_dir() or origin.was_there(home) is not False:
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
        host.broke(f"group {name}", output, f"groupdel {name}")
    else:
        host.changed(f"group {name}", "is there", "removed")
        origin_record.drop_kept(host, "groups", name)
