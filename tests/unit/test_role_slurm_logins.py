"""Module `slurm_logins`: verdicts on PAM access to nodes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logins: Any = load_role_module("slurm", "slurm_logins")
ask: Any = sys.modules["ansible.module_utils.slurm_commands"]
LETS_IN, REFUSES = logins.PAM_SUCCESS, logins.PAM_PERM_DENIED


def controller(text: str, status: int | None = 0) -> Callable[[Sequence[str], float], Any]:
    """Return a controller with one answer."""
    return lambda _words, _limit_s: ask.Answer(status, text)


@pytest.mark.parametrize(
    ("people", "queue", "answers", "verdict"),
    [
        (["ada", "bob"], (0, "ada\n"), {"bob": REFUSES, "root": LETS_IN}, "pass"),
        (["ada"], (0, ""), {"ada": LETS_IN, "root": LETS_IN}, "fail"),
        (["ada"], (0, ""), {"ada": REFUSES, "root": REFUSES}, "fail"),
        (["ada"], (0, ""), {"ada": 10, "root": LETS_IN}, "fail"),
        (["ada"], (0, ""), {"ada": None, "root": LETS_IN}, "unknown"),
        (["ada"], (1, "slurm_load_jobs error"), {}, "unknown"),
        (["ada"], (None, "timed out"), {}, "unknown"),
        (["ada"], (0, "ada\nada\n"), {}, "skipped"),
        ([], (0, ""), {}, "skipped"),
    ],
)
def test_account_without_a_job_is_refused_and_root_is_not(
    people: list[str], queue: tuple[int | None, str], answers: dict[str, int | None], verdict: str
) -> None:
    """Accounts with jobs are not tested: PAM would move the test process into the job."""
    found = logins.check_logins("n1", people, enabled=True, pam=answers.__getitem__, caller=controller(queue[1], queue[0]))

    assert found.verdict == verdict
    assert bool(found.reason) is (verdict != "pass")


def test_open_host_is_skipped() -> None:
    """No account is tested there."""
    found = logins.check_logins("n1", ["ada"], enabled=False, pam={}.__getitem__, caller=controller(""))

    assert found.verdict == "skipped"
    assert "slurm_pam_adopt" in found.reason


def test_unavailable_pam_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers a missing libpam and a PAM that hangs."""

    def fails(_limit_s: float, _call: Any) -> int:
        raise TimeoutError("no answer within 20 s")

    monkeypatch.setattr(logins, "within", fails)

    assert logins.ask_pam("ada") is None
