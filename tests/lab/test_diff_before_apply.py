"""Test `diff` of the whole lab before the first apply."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab_fixture import create_lab
from tests.lab.lab_rig import RunningLab, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.fault, pytest.mark.timeout(2400)]
# One or more of each phase.
WOULD_CHANGE = {"baseline", "gpu_env", "prometheus", "redis", "juicefs", "envoy", "oci_registry", "munge", "slurm", "primus_watch"}


@pytest.fixture
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Create the hosts of `make lab` without an apply."""
    yield from create_lab(RunningLab(f"test{os.getpid()}-d", tmp_path_factory.mktemp("untouched")))


def test_diff_shows_every_role_and_changes_nothing(untouched: RunningLab) -> None:
    """It succeeds although later roles depend on earlier ones; the hosts are unchanged."""
    before = untouched.sh("node1", "dpkg-query --show; ls /etc /etc/systemd/system; getent passwd")
    done = run_cli("diff", str(untouched.hosts_file), timeout_s=1800)

    assert done.returncode == 0, done.stdout + done.stderr
    assert {change["role"] for change in untouched.last_report()["changes"]} >= WOULD_CHANGE
    assert untouched.sh("node1", "dpkg-query --show; ls /etc /etc/systemd/system; getent passwd") == before
