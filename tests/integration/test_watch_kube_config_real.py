"""The kubeconfig that a watcher takes, what it refuses of one, and that no answer is no refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.watch.kube_api import Api, ApiSilentError
from tests.unit.test_watch_kube_config import written

if TYPE_CHECKING:
    from pathlib import Path


def test_a_port_where_nobody_listens_gives_no_answer(tmp_path: Path) -> None:
    """That is unknown, and said with what the system calls it."""
    with pytest.raises(ApiSilentError, match="did not answer: ConnectionRefusedError"):
        Api(written(tmp_path, {}, {"token": "abc"})).get("/apis")
