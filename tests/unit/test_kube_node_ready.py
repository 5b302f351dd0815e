"""When a Node counts as back after a reboot: Ready, and heard of since."""

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
    """An API whose answers change with time: when the kubelet renews, from when the Node is Ready, and until when there is no answer."""

    def __init__(self, *, renews_from: float = 0, ready_from: float = 0, silent_until: float = 0) -> None:
        """Begin at 0."""
        super().__init__(node())
        self.now = 0.0
        self.renews_from, self.ready_from, self.silent_until = renews_from, ready_from, silent_until

    def clock(self) -> float:
        """Tell the time."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return the Node or its lease as they are now."""
        if self.now < self.silent_until:
            raise ApiError("the API server gives no answer", fix="")
        if "/leases/" in path:
            return {"spec": {"renewTime": f"{max(self.now, 0) if self.now >= self.renews_from else 'before'}"}}
        return {**super().get(path, **query), "status": {"conditions": [GOOD if self.now >= self.ready_from else BAD]}}


@pytest.mark.parametrize(
    ("renews", "ready", "silent", "after"),
    [(0, 0, 0, POLL_S), (30, 0, 0, 30), (0, 60, 0, 60), (0, 0, 30, 30 + POLL_S)],
    ids=["at once", "its kubelet is late", "it is not Ready yet", "the API server is the rebooted host's own"],
)
def test_it_is_back_when_it_is_ready_and_was_heard_of_since(renews: float, ready: float, silent: float, after: float) -> None:
    """What it said before the reboot does not count, however good it looks."""
    api = Leases(renews_from=renews, ready_from=ready, silent_until=silent)
    wait_for(api, "gpu1", 100, clock=api.clock, wait=api.wait)

    assert api.now == after


@pytest.mark.parametrize(
    ("never", "says"),
    [
        ({"renews_from": 999}, "its kubelet has not been heard of since"),
        ({"ready_from": 999}, r"it is not Ready \(Kubelet stopped posting node status"),
        ({"silent_until": 999}, "the API server gives no answer"),
    ],
)
def test_one_that_does_not_come_back_is_named_with_its_reason(never: dict[str, float], says: str) -> None:
    """So that the play ends there, and no further host is rebooted."""
    api = Leases(**never)

    with pytest.raises(RunError, match=f"Node gpu1 was not back within 100 s: {says}"):
        wait_for(api, "gpu1", 100, clock=api.clock, wait=api.wait)


def test_a_host_without_a_node_is_not_waited_for() -> None:
    """It has yet to join, or has left."""
    api = Leases()
    wait_for(api, "gpu9", 100, clock=api.clock, wait=api.wait)

    assert api.now == 0
