"""The time limit of `ssh -G`, because ssh_config can run programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine import hostkeys
from tests.unit.engine_rig import make_cluster

if TYPE_CHECKING:
    from pathlib import Path


def test_a_hanging_ssh_configuration_is_an_error_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning a key from hosts.yaml calls `ssh -G`; the error has the name of the host."""
    monkeypatch.setattr(hostkeys, "_CONFIGURATION_TIMEOUT_S", 1)
    config = tmp_path / "config"
    config.write_text('Match exec "sleep 600"\n  User joe\n')
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE0aTPGWHmTPlOgnLUXQDCPGCu9bFNHRoHtmcEGMiDAW"
    variables = {"ansible_host": "192.0.2.9", "host_key": key, "ansible_ssh_common_args": f"-F {config}"}
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": variables})

    with pytest.raises(PlanError, match="a: `ssh -G` did not end within 1 s") as caught:
        hostkeys.pin_host_keys(cluster, ("a",))

    assert "run `ssh -G 192.0.2.9` by hand" in caught.value.fix
