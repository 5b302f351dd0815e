"""The module `account_conflicts`, asked about this machine's own accounts: root is 0 and daemon is 1 on every Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_account_conflicts import ACCOUNT, GROUP, conflicts, problems


@pytest.mark.skipif(not Path(conflicts.VISUDO).exists(), reason="visudo is not installed on this machine")
def test_a_sudo_rule_that_visudo_refuses_is_named_before_it_is_written() -> None:
    """The rule, what visudo says of it, and which option to mend; a right rule of the same account is no problem."""
    found = problems([GROUP], [{**ACCOUNT, "sudo_rules": ["ALL=(ALL) NOPASSWD:ALL", "ALL=(ALL NOPASSWD ALL"]}])

    assert len(found) == 1
    assert "visudo refuses the sudo rule `ALL=(ALL NOPASSWD ALL` (" in found[0]
    assert "syntax error" in found[0]
    assert "Fix: mend it in sudo_rules" in found[0]
