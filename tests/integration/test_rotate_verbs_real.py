"""`secrets rotate` with an unknown secret."""

from __future__ import annotations

from tests.command_line import run_primus
from tests.playbooks import one_line, run_playbook
from tests.unit.test_rotate_verbs import LAB, PLAYBOOK


def test_an_unknown_secret_is_an_error_with_the_choices() -> None:
    """No host is contacted."""
    done = run_primus("secrets", "rotate", str(LAB), "reddis", "--yes")

    assert done.returncode == 2
    assert "fix: choose from: certificates, gateway, mariadb, monitoring, munge, object_store, redis, registry" in done.stderr


def test_the_playbook_fails_for_an_unknown_secret() -> None:
    """So it does without a secret."""
    results = [run_playbook(LAB, PLAYBOOK, *words) for words in ([], ["-e", "secret=x"])]

    assert ["Fix: -e secret=NAME with one of munge" in one_line(done) for done in results] == [True, True]
    assert [done.returncode for done in results] == [2, 2]
