"""The module `account_password`: whether a stored hash is that of a password, as the machine's own libcrypt sees it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_module import load_role_module

password: Any = load_role_module("juicefs", "account_password")

# From the specification of SHA-crypt (https://www.akkadia.org/drepper/SHA-crypt.txt), the first test vector of SHA-512.
VECTOR = "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1"


@pytest.mark.parametrize(("given", "same"), [("Hello world!", True), ("Hello world?", False), ("", False)])
def test_a_hash_is_that_of_one_password(given: str, same: bool) -> None:  # noqa: FBT001 (a table's column)
    """The right password matches; another one and none do not."""
    assert password.matches(given, VECTOR) is same


@pytest.mark.parametrize("row", ["jfs:!:20000::::::", "jfs:*:20000::::::", "jfs:!$6$a$b:20000::::::", "other:$6$a$b:20000::::::", ""])
def test_a_locked_account_matches_no_password(row: str) -> None:
    """Locked, without a password, or not there: nothing is stored, and no password is the account's."""
    assert password.stored_hash("jfs", row) == ""
    assert not password.matches("", password.stored_hash("jfs", row))


def test_the_right_row_is_read() -> None:
    """An account whose name begins like another's is not taken for it."""
    shadow = f"jfsstore2:$6$other:1::::::\njfsstore:{VECTOR}:1::::::\n"

    assert password.stored_hash("jfsstore", shadow) == VECTOR
