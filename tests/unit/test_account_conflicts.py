"""Module `account_conflicts` on the accounts of this machine: root is 0 and daemon is 1 on every Linux."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_module import load_role_module

conflicts: Any = load_role_module("users_groups", "account_conflicts")

# Numbers and names that no distribution uses.
GROUP = {"name": "primus-test-group", "gid": 48111}
ACCOUNT = {"name": "primus-test-account", "uid": 48112}


def problems(groups: list[dict[str, Any]], accounts: list[dict[str, Any]], *, visudo: bool = True) -> list[str]:
    """Return the findings of the module."""
    found: list[str] = conflicts.find_problems(groups, accounts, visudo=visudo)
    return found


def test_unused_names_and_numbers_are_accepted() -> None:
    """Existing accounts with their own numbers are accepted too."""
    found = problems([GROUP, {"name": "root", "gid": 0}], [{**ACCOUNT, "groups": ["daemon"]}, {"name": "daemon", "uid": 1}])

    assert found == []


@pytest.mark.parametrize(
    ("groups", "accounts", "cause"),
    [
        ([{"name": "new", "gid": 0}], [], "gid 0 of group new belongs to root on this host. Fix: choose another gid"),
        ([{"name": "root", "gid": 48111}], [], "group root has gid 0 on this host and 48111 in hosts.yaml. Fix: set gid: 0"),
        ([GROUP], [{"name": "new", "uid": 1}], "uid 1 of account new belongs to daemon on this host. Fix: choose another uid"),
        ([GROUP], [{"name": "daemon", "uid": 48112}], "account daemon has uid 1 on this host and 48112 in hosts.yaml. Fix: "),
        ([GROUP], [{"name": "new"}], "account new has no uid. Fix: add uid"),
        ([GROUP], [ACCOUNT, ACCOUNT], "account primus-test-account is listed twice. Fix: "),
        ([GROUP], [ACCOUNT, {**ACCOUNT, "name": "twin"}], "uid 48112 is given to primus-test-account, twin. Fix: "),
        ([GROUP, {**GROUP, "name": "twin"}], [], "gid 48111 is given to primus-test-group, twin. Fix: "),
        ([GROUP], [{**ACCOUNT, "groups": ["nosuch"]}], "there is no group nosuch. Fix: add it to users_groups_groups"),
        ([GROUP], [{**ACCOUNT, "group": "nosuch"}], "there is no group nosuch. Fix: add it to users_groups_groups"),
        ([GROUP], [{"name": "root", "state": "absent"}], "account root is the superuser and cannot be removed. Fix: "),
    ],
)
def test_each_conflict_is_reported_with_a_fix(groups: list[dict[str, Any]], accounts: list[dict[str, Any]], cause: str) -> None:
    """The message has the conflict and the account."""
    found = problems(groups, accounts)

    assert any(cause in problem for problem in found), found


def test_sudo_rules_require_sudo() -> None:
    """Without visudo, rules are refused; accounts without rules are accepted."""
    with_rules = {**ACCOUNT, "sudo_rules": ["ALL=(ALL) ALL"]}

    assert problems([GROUP], [ACCOUNT], visudo=False) == []
    assert "has no sudo. Fix: install sudo" in problems([GROUP], [with_rules], visudo=False)[0]


def test_all_conflicts_are_reported_at_once() -> None:
    """One run finds every conflict of a host."""
    found = problems([{"name": "new", "gid": 0}], [{"name": "eve", "uid": 1}, {"name": "root", "state": "absent"}])

    assert len(found) == 3


def test_absent_account_may_have_any_number() -> None:
    """The removal of an account needs no uid and conflicts with no other account."""
    found = problems([GROUP], [{"name": "gone", "state": "absent"}, {"name": "gone2", "state": "absent", "uid": 1}])

    assert found == []
