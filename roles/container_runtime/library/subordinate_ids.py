#!/usr/bin/python
"""Ansible module `subordinate_ids`: add a range of subordinate ids for accounts that have none.

No collection has a module for /etc/subuid and /etc/subgid. Existing ranges never change, because files of containers have these ids. New
ranges do not overlap with others.
"""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.atomic_files import write_atomic
from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# SUB_UID_MIN and SUB_UID_MAX of login.defs(5), as distributions ship them.
LOWEST, HIGHEST = 100_000, 600_100_000


class RangesError(Exception):
    """No ids are left, or a file cannot be parsed."""


def ranges_in(text: str) -> list[tuple[str, int, int]]:
    """Return (owner, first id, count) of each line of subuid(5); an owner is a name or a uid.

    Raises:
        RangesError: A line is malformed.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        owner, *rest = line.split(":")
        if len(rest) != 2 or not all(part.isdigit() for part in rest):
            raise RangesError(f"line {number} is not NAME:FIRST:COUNT: {line!r}. Fix: correct or remove it")
        found.append((owner, int(rest[0]), int(rest[1])))
    return found


def with_ranges(text: str, accounts: Mapping[str, int], count: int) -> str:
    """Return the text with a range for each account that has none.

    Args:
        text: Content of the file.
        accounts: Names and uids.
        count: Number of ids of a new range.

    Raises:
        RangesError: A line is malformed, or no ids are left.
    """
    known = ranges_in(text)
    owners = {owner for owner, _, _ in known}
    first = max([LOWEST, *(start + size for _, start, size in known)])
    lines = []
    for name, number in accounts.items():
        if name in owners or str(number) in owners:
            continue
        if first + count > HIGHEST:
            raise RangesError(
                f"no {count} ids are left below {HIGHEST} for {name}. Fix: remove ranges of accounts that do not exist any more"
            )
        lines.append(f"{name}:{first}:{count}\n")
        first += count
    ending = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{ending}{''.join(lines)}" if lines else text


def known_accounts(names: Sequence[str]) -> dict[str, int]:
    """Return the uid of each account.

    Raises:
        RangesError: An account does not exist on this host.
    """
    numbers = {}
    for name in names:
        try:
            numbers[name] = pwd.getpwnam(name).pw_uid
        except KeyError as error:
            raise RangesError(
                f"there is no account {name}. Fix: add it to users_groups_accounts, or remove it from container_runtime_accounts"
            ) from error
    return numbers


def main() -> None:
    """Add missing ranges to both files."""
    module = AnsibleModule(
        argument_spec={
            "accounts": {"type": "list", "elements": "str", "required": True},
            "count": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    diffs = []
    try:
        # In check mode an account that this run would create does not exist yet.
        names = [name for name in module.params["accounts"] if not module.check_mode or _exists(name)]
        accounts = known_accounts(names)
        for path in (Path("/etc/subuid"), Path("/etc/subgid")):
            before = path.read_text(encoding="utf-8") if path.exists() else ""
            after = with_ranges(before, accounts, module.params["count"])
            if after == before:
                continue
            diffs.append({"before_header": str(path), "after_header": str(path), "before": before, "after": after})
            if not module.check_mode:
                write_atomic(path, after, mode=0o644)  # the distribution's mode
    except (RangesError, OSError) as error:
        module.fail_json(msg=f"subordinate ids: {error}")
    module.exit_json(changed=bool(diffs), diff=diffs)


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


if __name__ == "__main__":
    main()
