#!/usr/bin/python
"""Find what would keep groups and accounts from having their stated ids on this host: the Ansible module `account_conflicts`.

It only reads, through the host's own name service, so accounts that come from a directory are seen as well. It also says
whether there is a file of sudo rules of ours, so that a host without one needs no task that removes it.
"""

from __future__ import annotations

import grp
import pwd
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

SSHD, SSHD_FOLDER = "/usr/sbin/sshd", "/etc/ssh/sshd_config.d"
VISUDO = "/usr/sbin/visudo"


def group_number(name: str) -> int | None:
    """Return the number of a group of this host."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def group_name(number: int) -> str | None:
    """Return the name that a group number has on this host."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return None


def account_number(name: str) -> int | None:
    """Return the number of an account of this host."""
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def account_name(number: int) -> str | None:
    """Return the name that an account number has on this host."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return None


def repeated(values: Iterable[Any]) -> list[Any]:
    """Return what is there more than once."""
    return [value for value, count in Counter(values).items() if count > 1]


def within_file(kind: str, key: str, entries: list[Mapping[str, Any]]) -> Iterator[str]:
    """Say what contradicts itself in hosts.yaml."""
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
    """Say which name has another number here, and which number another name."""
    for entry in entries:
        name = entry["name"]
        if entry.get(key) is None:
            yield f"{kind} {name} has no {key}. Fix: add {key}, the same for every host"
            continue
        wanted = int(entry[key])
        number, owner = number_of(name), name_of(wanted)
        if number is not None and number != wanted:
            yield (
                f"{kind} {name} has {key} {number} on this host and {wanted} in hosts.yaml. Fix: state {key}: {number} for every host, "
                f"or change the number here by hand, with the owner of its files"
            )
        elif owner is not None and owner != name:
            yield f"{key} {wanted} of {kind} {name} belongs to {owner} on this host. Fix: choose another {key}"


def refused_rules(name: str, rules: list[str]) -> Iterator[str]:
    """Say which rules visudo does not take, before one of them is written anywhere."""
    for rule in rules:
        done = subprocess.run(
            [VISUDO, "-cf", "-"], input=f"{name} {rule}\n", capture_output=True, text=True, timeout=30, check=False, env={"LC_ALL": "C"}
        )
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())
            yield f"account {name}: visudo refuses the sudo rule `{rule}` ({said}). Fix: mend it in sudo_rules; sudoers(5) has the syntax"


def find_problems(groups: list[Mapping[str, Any]], accounts: list[Mapping[str, Any]], *, visudo: bool) -> list[str]:
    """Return everything that is wrong, each with its fix.

    Args:
        groups: Every stated group.
        accounts: Every stated account, the absent ones included.
        visudo: Whether this host has visudo.
    """
    present = [entry for entry in accounts if entry.get("state", "present") == "present"]
    problems = [*within_file("group", "gid", groups), *within_file("account", "uid", accounts)]
    problems += on_host("group", "gid", groups, group_number, group_name)
    problems += on_host("account", "uid", present, account_number, account_name)
    stated = {entry["name"] for entry in groups}
    for entry in present:
        wanted = {entry.get("group") or groups[0]["name"], *(entry.get("groups") or ())}
        problems += [
            f"account {entry['name']}: there is no group {name}. Fix: list it in users_groups_groups, or take it out of the account"
            for name in sorted(wanted - stated)
            if group_number(name) is None
        ]
        if entry.get("sudo_rules") and not visudo:
            problems.append(f"account {entry['name']} has sudo_rules and this host has no sudo. Fix: install sudo, or take the rules out")
        elif entry.get("sudo_rules"):
            problems += refused_rules(entry["name"], entry["sudo_rules"])
    problems += [
        f"account {entry['name']} is the superuser and cannot be removed. Fix: take the entry out"
        for entry in accounts
        if entry not in present and account_number(entry["name"]) == 0
    ]
    return problems


def main() -> None:
    """Read the arguments, look, and fail with every problem at once."""
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
