"""Test the errors of kube_reach for an unusable kubeconfig."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.test_kube_reach import kubeconfig, reach

if TYPE_CHECKING:
    from pathlib import Path


def test_expired_certificate_is_refused_without_a_request(tmp_path: Path) -> None:
    """The error has the number of days since the certificate expired."""
    with pytest.raises(reach.ReachError, match=r"the client certificate expired 30\.0 days ago. Fix: renew"):
        reach.check_server(kubeconfig(tmp_path, days=-30), "")


@pytest.mark.timeout(30)
def test_missing_server_is_refused_at_once(tmp_path: Path) -> None:
    """The error has the address; the request is not retried."""
    with pytest.raises(reach.ReachError, match=r"the API server https://127.0.0.1:\d+ does not answer: .*refused"):
        reach.check_server(kubeconfig(tmp_path, days=30), "")
