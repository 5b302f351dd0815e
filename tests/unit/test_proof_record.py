"""Kept proofs: an expensive check is repeated when it is old, when something changed, or on request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_shared

if TYPE_CHECKING:
    from pathlib import Path

proofs: Any = load_shared("proof_record")
PASSED = {"check": "slurm.job", "host": "ctl", "verdict": "pass", "found": "node1, node2", "seconds": 3.0, "started": 1000.0}
SKIPPED = {**PASSED, "verdict": "skipped", "reason": "no node is idle"}
FAILED = {**PASSED, "verdict": "fail", "reason": "no output"}
UNKNOWN = {**PASSED, "verdict": "unknown", "reason": "no answer"}


def record(folder: Path, *, current: str = "a", max_age_h: int = 24, now: float = 1000.0) -> Any:
    """Return a record as of a time."""
    return proofs.ProofRecord("slurm", current, max_age_h, folder=folder, clock=lambda: now)


def test_good_proof_is_reused_and_shows_its_age(tmp_path: Path) -> None:
    """The verdict comes back with its age; the record is for root only."""
    folder = tmp_path / "proofs"
    record(folder).store(PASSED)
    soon, later = record(folder, now=1000.0 + 5 * 60).load(), record(folder, now=1000.0 + 3 * 3600).load()

    assert soon["found"] == "node1, node2 (proved 5 min ago)"
    assert later == {**PASSED, "found": "node1, node2 (proved 3 h ago)", "seconds": 0.0}
    assert (folder.stat().st_mode & 0o777, (folder / "slurm.json").stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize(
    "changed",
    [{"current": "b"}, {"now": 1000.0 + 25 * 3600}, {"max_age_h": 0}, {"now": 900.0}],
    ids=["changed service", "too old", "requested", "clock went back"],
)
def test_proof_is_repeated(tmp_path: Path, changed: dict[str, Any]) -> None:
    """A record of another state, age or clock is not used."""
    record(tmp_path).store(PASSED)

    assert record(tmp_path, **changed).load() is None


@pytest.mark.parametrize("verdict", [FAILED, UNKNOWN, SKIPPED], ids=lambda verdict: verdict["verdict"])
def test_only_a_pass_is_kept(tmp_path: Path, verdict: dict[str, Any]) -> None:
    """Another verdict also removes the earlier pass."""
    record(tmp_path).store(PASSED)
    record(tmp_path).store(verdict)

    assert record(tmp_path).load() is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"fingerprint": "a", "at": "x", "verdict": {}}', '{"fingerprint": "a", "at": 1000, "verdict": 3}']
)
def test_damaged_record_repeats_the_proof(tmp_path: Path, text: str) -> None:
    """A torn or foreign file is no proof."""
    (tmp_path / "slurm.json").write_text(text)

    assert record(tmp_path).load() is None
    (tmp_path / "slurm.json").write_text(json.dumps({"fingerprint": "a", "at": 1000.0, "verdict": PASSED}))
    assert record(tmp_path).load() is not None


def test_fingerprint_follows_files_units_and_facts(tmp_path: Path) -> None:
    """A changed file, a restarted unit or another fact gives another checksum; the order gives the same."""
    one, two = tmp_path / "slurm.conf", tmp_path / "gres.conf"
    one.write_text("a")

    def of(*, start: str = "1", facts: tuple[str, ...] = ()) -> str:
        text: str = proofs.fingerprint([one, two], ["slurmctld.service"], facts, invocation=lambda unit: f"{unit} {start}")
        return text

    first = of()
    assert of() == first
    assert proofs.fingerprint([two, one], ["slurmctld.service"], invocation=lambda unit: f"{unit} 1") == first
    assert len({first, of(start="2"), of(facts=("node1",))}) == 3
    two.write_text("b")
    assert of() != first
