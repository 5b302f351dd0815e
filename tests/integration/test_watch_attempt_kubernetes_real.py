"""The program `attempt` in a pod: it waits for rank 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.watch import attempt, node_record
from primus_bootstrap.launch.watch.classification import NOT_ITS_TURN
from tests.unit.test_watch_attempt_kubernetes import POD
from tests.unit.test_watch_attempt_kubernetes import folder as folder

if TYPE_CHECKING:
    import pytest

    from primus_bootstrap.launch.watch.job_folder import JobFolder


def test_a_rank_that_waits_for_rank_0_ends_with_its_lease(folder: JobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record has node, address and reason; no launcher was started."""
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    looks = attempt.Lease.look
    monkeypatch.setattr(attempt.Lease, "problem", property(lambda lease: (looks(lease), "its lease is gone")[1]))

    assert attempt.run(folder, 1, None) == NOT_ITS_TURN
    record = node_record.read_all(folder.attempt(1))[1]
    assert (record.host, record.address, record.pod, record.note) == ("gpu1", "10.1.0.4", "a-000000-1-r0", "its lease is gone")
    assert record.target_id == "primus-job-a-000000-1"
