"""The configuration of ssh that the engine asks for with `ssh -G`: it may run programs, so it has a time limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.engine import hostkeys
from tests.unit.engine_rig import make_cluster

if TYPE_CHECKING:
    from pathlib import Path


def test_a_configuration_that_hangs_is_an_error_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning a key that hosts.yaml states asks ssh for the host's name, and nothing else; the error names the host."""
    monkeypatch.setattr(hostkeys, "_CONFIGURATION_TIMEOUT_S", 1)
    config = tmp_path / "config"
    config.write_text('Match exec "sleep 600"\n  User joe\n')
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIE0aTPGWHmTPlOgnLUXQDCPGCu9bFNHRoHtmcEGMiDAW"
    variables = {"ansible_host": "192.0.2.9", "host_key": key, "ansible_ssh_common_args": f"-F {config}"}
    cluster = make_cluster(tmp_path, {"gpu_node": ["a"]}, {"a": variables})

    with pytest.raises(PlanError, match="a: `ssh -G` did not end within 1 s") as caught:
        hostkeys.pin_host_keys(cluster, ("a",))

    assert "run `ssh -G 192.0.2.9` by hand" in caught.value.fix
