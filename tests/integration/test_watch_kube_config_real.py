"""primus_bootstrap.launch.watch.kube_api: a server that does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.watch.kube_api import Api, ApiUnavailableError
from tests.unit.test_watch_kube_config import written

if TYPE_CHECKING:
    from pathlib import Path


def test_a_closed_port_gives_no_answer(tmp_path: Path) -> None:
    """The state is unknown. The message has the system's error."""
    with pytest.raises(ApiUnavailableError, match="did not answer: ConnectionRefusedError"):
        Api(written(tmp_path, {}, {"token": "abc"})).get("/apis")
