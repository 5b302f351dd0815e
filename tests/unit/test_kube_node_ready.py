"""Test when a Node counts as ready after a reboot."""

from __future__ import annotations

from typing import Any

import pytest

from primus_bootstrap.core.errors import RunError
from primus_bootstrap.kubernetes.api import ApiError
from primus_bootstrap.kubernetes.node_ready import POLL_S, wait_for
from tests.unit.kube_nodes_rig import FakeApi, node

BAD = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
GOOD = {"type": "Ready", "status": "True"}


class Leases(FakeApi):
    """An API with a Node and its lease that change with time, and that does not answer until `silent_until`."""

    def __init__(self, *, renews_from: float = 0, ready_from: float = 0, silent_until: float = 0) -> None:
        """Start at 0."""
        super().__init__(node())
        self.now = 0.0
        self.renews_from, self.ready_from, self.silent_until = renews_from, ready_from, silent_until

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return the Node or its lease at the current time."""
        if self.now < self.silent_until:
            raise ApiError("the API server does not answer", fix="")
        if "/leases/" in path:
            return {"spec": {"renewTime": f"{max(self.now, 0) if self.now >= self.renews_from else 'before'}"}}
        return {**super().get(path, **query), "status": {"conditions": [GOOD if self.now >= self.ready_from else BAD]}}


@pytest.mark.parametrize(
    ("renews", "ready", "silent", "after"),
    [(0, 0, 0, POLL_S), (30, 0, 0, 30), (0, 60, 0, 60), (0, 0, 30, 30 + POLL_S)],
    ids=["at once", "its kubelet is late", "it is not Ready yet", "the API server is the rebooted host's own"],
)
def test_node_is_ready_after_its_lease_was_renewed(renews: float, ready: float, silent: float, after: float) -> None:
    """A Ready condition from before the reboot does not count."""
    api = Leases(renews_from=renews, ready_from=ready, silent_until=silent)
    wait_for(api, "gpu1", 100, clock=api.clock, wait=api.wait)

    assert api.now == after


@pytest.mark.parametrize(
    ("never", "says"),
    [
        ({"renews_from": 999}, "its kubelet has not renewed its lease since"),
        ({"ready_from": 999}, r"it is not Ready \(Kubelet stopped posting node status"),
        ({"silent_until": 999}, "the API server does not answer"),
    ],
)
def test_node_that_does_not_return_is_an_error(never: dict[str, float], says: str) -> None:
    """The error has the reason."""
    api = Leases(**never)

    with pytest.raises(RunError, match=f"Node gpu1 was not ready within 100 s: {says}"):
        wait_for(api, "gpu1", 100, clock=api.clock, wait=api.wait)


def test_missing_node_is_not_waited_for() -> None:
    """A host without a Node returns at once."""
    api = Leases()
    wait_for(api, "gpu9", 100, clock=api.clock, wait=api.wait)

    assert api.now == 0
