"""Module `munge_effects`: whether munged runs with the distributed key and accepts credentials of other hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

effects: Any = load_role_module("munge", "munge_effects")

KEY = "k" * 40


def outcomes(verdicts: Any) -> dict[str, str]:
    """Return the verdict of each check."""
    return {record["check"].removeprefix("munge."): record["verdict"] for record in verdicts.records}


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int | None, str]]:
    """Fake munge, unmunge and sha256sum: status and output by program."""
    answers: dict[str, tuple[int | None, str]] = {"munge": (0, "MUNGE:AwQ:"), "sha256sum": (0, ""), "unmunge": (0, "")}
    monkeypatch.setattr(effects, "run", lambda command, _text="": answers[command[0]])
    return answers


@pytest.mark.parametrize(
    ("file", "munge", "applied", "expected"),
    [
        (KEY, (0, "MUNGE:AwQ:"), 0, ["pass", "pass", "pass"]),
        ("x" * 40, (0, "MUNGE:AwQ:"), 0, ["pass", "fail", "pass"]),
        (KEY, (0, "MUNGE:AwQ:"), 1, ["pass", "pass", "fail"]),
        (KEY, (6, 'Failed to access "/run/munge/munge.socket.2"'), None, ["fail", "pass", "unknown"]),
        (KEY, (None, "timed out"), 0, ["unknown", "pass", "pass"]),
    ],
)
def test_key_and_daemon_are_checked_separately(
    file: str, munge: tuple[int | None, str], applied: int | None, expected: list[str], *, programs: Any, tmp_path: Path
) -> None:
    """A wrong key on disk, a wrong key in the daemon and a stopped daemon are distinct findings."""
    programs.update(munge=munge, sha256sum=(applied, ""))
    (tmp_path / "key").write_text(file, encoding="utf-8")
    verdicts = effects.Verdicts("munge", "n1")
    credential = effects.check_host(verdicts, KEY, key_file=tmp_path / "key", applied=tmp_path / "applied")

    assert outcomes(verdicts) == dict(zip(("answers", "key", "in_force"), expected, strict=True))
    assert credential == (munge[1] if munge[0] == 0 else "")
    assert KEY not in str(verdicts.records)


@pytest.mark.parametrize(
    ("status", "output", "verdict", "fix"),
    [
        (0, "", "pass", ""),
        (8, "unmunge: Error: Invalid credential", "fail", "key of this host is not the one of ctl1"),
        (15, "unmunge: Error: Expired credential", "fail", "set the clock"),
        (16, "unmunge: Error: Rewound credential", "fail", "set the clock"),
        (None, "timed out", "unknown", "systemctl status munge"),
    ],
)
def test_wrong_key_and_wrong_clock_have_different_messages(status: int | None, output: str, verdict: str, fix: str, programs: Any) -> None:
    """The message names the cause. A time-out does not prove a wrong key."""
    programs["unmunge"] = (status, output)
    verdicts = effects.Verdicts("munge", "n1")
    effects.check_credential(verdicts, "ctl1", "MUNGE:AwQ:")

    assert outcomes(verdicts) == {"trusts": verdict}
    assert fix in verdicts.records[0].get("fix", "")


def test_missing_credential_of_a_peer_is_unknown(programs: Any) -> None:
    """The peer has no munge; this host is not at fault."""
    programs["unmunge"] = (8, "would be a fail")
    verdicts = effects.Verdicts("munge", "n1")
    effects.check_credential(verdicts, "ctl1", "")

    assert outcomes(verdicts) == {"trusts": "unknown"}
