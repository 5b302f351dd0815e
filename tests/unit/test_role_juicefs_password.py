"""Module `account_password`: compares a password with a stored hash through libcrypt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.role_module import load_role_module

password: Any = load_role_module("juicefs", "account_password")

# From the specification of SHA-crypt (https://www.akkadia.org/drepper/SHA-crypt.txt), the first test vector of SHA-512.
VECTOR = "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1"


@pytest.mark.parametrize(("given", "same"), [("Hello world!", True), ("Hello world?", False), ("", False)])
def test_hash_matches_one_password(given: str, same: bool) -> None:  # noqa: FBT001 (a table's column)
    """Other and empty passwords do not match."""
    assert password.matches(given, VECTOR) is same


@pytest.mark.parametrize("row", ["jfs:!:20000::::::", "jfs:*:20000::::::", "jfs:!$6$a$b:20000::::::", "other:$6$a$b:20000::::::", ""])
def test_locked_account_matches_no_password(row: str) -> None:
    """Also applies to accounts that are missing or have no password."""
    assert password.stored_hash("jfs", row) == ""
    assert not password.matches("", password.stored_hash("jfs", row))


def test_the_row_of_the_account_is_read() -> None:
    """An account with a common prefix is not confused."""
    shadow = f"jfsstore2:$6$other:1::::::\njfsstore:{VECTOR}:1::::::\n"

    assert password.stored_hash("jfsstore", shadow) == VECTOR
