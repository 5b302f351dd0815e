"""Whether an API server can be used: what a kubeconfig that cannot work is refused with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.test_kube_reach import kubeconfig, reach

if TYPE_CHECKING:
    from pathlib import Path


def test_an_expired_certificate_is_told_before_the_server_is_asked(tmp_path: Path) -> None:
    """The server would answer 401 without a reason; the kubeconfig itself tells for how long it has been too late."""
    with pytest.raises(reach.ReachError, match=r"the client certificate expired 30\.0 days ago. Fix: renew"):
        reach.look(kubeconfig(tmp_path, days=-30), "")


@pytest.mark.timeout(30)
def test_a_server_that_does_not_answer_is_named_at_once(tmp_path: Path) -> None:
    """Its address stands in the message; nothing is tried again and again."""
    with pytest.raises(reach.ReachError, match=r"the API server https://127.0.0.1:\d+ does not answer: .*refused"):
        reach.look(kubeconfig(tmp_path, days=30), "")
