#!/usr/bin/python
"""Ansible module `account_conflicts`: find ids and names of groups and accounts that are in use on this host. Changes nothing.

ansible.builtin.user stops at the first conflict and changes the uid of an existing account; this module reports all conflicts before
anything changes. It reads through the host's name service, so that accounts of a directory service count too. It also returns whether the
role's sudoers file and sshd exist.
"""

from __future__ import annotations

import grp
import pwd
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

SSHD, SSHD_FOLDER = "/usr/sbin/sshd", "/etc/ssh/sshd_config.d"
VISUDO = "/usr/sbin/visudo"


def group_number(name: str) -> int | None:
    """Return the gid of a group of this host."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def group_name(number: int) -> str | None:
    """Return the name of a gid on this host."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return None


def account_number(name: str) -> int | None:
    """Return the uid of an account of this host."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def account_name(number: int) -> str | None:
    """Return the name of a uid on this host."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return None


def repeated(values: Iterable[Any]) -> list[Any]:
    """Return the values that occur more than once."""
    return [value for value, count in Counter(values).items() if count > 1]


def within_file(kind: str, key: str, entries: list[Mapping[str, Any]]) -> Iterator[str]:
    """Report names and ids that occur twice in hosts.yaml."""
    for name in repeated(entry["name"] for entry in entries):
        yield f"{kind} {name} is listed twice. Fix: keep one of the entries"
    for number in repeated(entry[key] for entry in entries if entry.get(key) is not None):
        names = ", ".join(entry["name"] for entry in entries if entry.get(key) == number)
        yield f"{key} {number} is given to {names}. Fix: give each its own {key}"


def on_host(
    kind: str,
    key: str,
    entries: list[Mapping[str, Any]],
    number_of: Callable[[str], int | None],
    name_of: Callable[[int], str | None],
) -> Iterator[str]:
    """Report names with another id on this host, and ids with another name."""
    for entry in entries:
        name = entry["name"]
        if entry.get(key) is None:
            yield f"{kind} {name} has no {key}. Fix: add {key}, the same for every host"
            continue
        wanted = int(entry[key])
        number, owner = number_of(name), name_of(wanted)
        if number is not None and number != wanted:
            yield (
                f"{kind} {name} has {key} {number} on this host and {wanted} in hosts.yaml. Fix: set {key}: {number} for every host, "
                f"or change the {key} on this host by hand, and the owner of its files"
            )
        elif owner is not None and owner != name:
            yield f"{key} {wanted} of {kind} {name} belongs to {owner} on this host. Fix: choose another {key}"


def refused_rules(name: str, rules: list[str]) -> Iterator[str]:
    """Report sudo rules that visudo rejects."""
    for rule in rules:
        done = run_command([VISUDO, "-cf", "-"], stdin=f"{name} {rule}\n", timeout_s=30, env={"LC_ALL": "C"})
        if done.code:
            output = " ".join((done.stderr or done.stdout).split())
            yield f"account {name}: visudo rejects the sudo rule `{rule}` ({output}). Fix: correct it in sudo_rules; see sudoers(5)"


def find_problems(groups: list[Mapping[str, Any]], accounts: list[Mapping[str, Any]], *, visudo: bool) -> list[str]:
    """Return all problems, each with its fix.

    Args:
        groups: Every group of hosts.yaml.
        accounts: Every account of hosts.yaml, absent ones included.
        visudo: Whether this host has visudo.
    """
    present = [entry for entry in accounts if entry.get("state", "present") == "present"]
    problems = [*within_file("group", "gid", groups), *within_file("account", "uid", accounts)]
    problems += on_host("group", "gid", groups, group_number, group_name)
    problems += on_host("account", "uid", present, account_number, account_name)
    listed = {entry["name"] for entry in groups}
    for entry in present:
        wanted = {entry.get("group") or groups[0]["name"], *(entry.get("groups") or ())}
        problems += [
            f"account {entry['name']}: there is no group {name}. Fix: add it to users_groups_groups, or remove it from the account"
            for name in sorted(wanted - listed)
            if group_number(name) is None
        ]
        if entry.get("sudo_rules") and not visudo:
            problems.append(f"account {entry['name']} has sudo_rules, but this host has no sudo. Fix: install sudo, or remove the rules")
        elif entry.get("sudo_rules"):
            problems += refused_rules(entry["name"], entry["sudo_rules"])
    problems += [
        f"account {entry['name']} is the superuser and cannot be removed. Fix: remove the entry"
        for entry in accounts
        if entry not in present and account_number(entry["name"]) == 0
    ]
    return problems


def main() -> None:
    """Fail with all problems at once."""
    dicts = {"type": "list", "elements": "dict", "required": True}
    spec = {"groups": dicts, "accounts": dicts, "sudoers_file": {"type": "str", "required": True}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    problems = find_problems(module.params["groups"], module.params["accounts"], visudo=Path(VISUDO).exists())
    if problems:
        module.fail_json(msg="\n".join(problems), problems=problems)
    exists = Path(module.params["sudoers_file"]).exists()
    module.exit_json(changed=False, sudoers_file_exists=exists, sshd=Path(SSHD).exists() and Path(SSHD_FOLDER).is_dir())


if __name__ == "__main__":
    main()
