"""Module `account_conflicts` with the real visudo."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_account_conflicts import ACCOUNT, GROUP, conflicts, problems


@pytest.mark.skipif(not Path(conflicts.VISUDO).exists(), reason="visudo is not installed on this machine")
def test_rejected_sudo_rule_is_reported_before_it_is_written() -> None:
    """The problem has the rule, visudo's message and the option to change. A valid rule of the account is accepted."""
    found = problems([GROUP], [{**ACCOUNT, "sudo_rules": ["ALL=(ALL) NOPASSWD:ALL", "ALL=(ALL NOPASSWD ALL"]}])

    assert len(found) == 1
    assert "visudo rejects the sudo rule `ALL=(ALL NOPASSWD ALL` (" in found[0]
    assert "syntax error" in found[0]
    assert "Fix: correct it in sudo_rules" in found[0]
