"""Role `envoy`: the generated configuration, validated by the real Envoy."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.unit.envoy_rig import certificate, configuration
from tests.unit.envoy_rig import envoy_program as envoy_program

if TYPE_CHECKING:
    from pathlib import Path


def validate(program: str, static: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Validate a configuration with the real Envoy."""
    path = folder / "static.json"
    path.write_text(static)
    command = [program, "--mode", "validate", "--log-level", "error", "-c", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.timeout(300)
def test_envoy_accepts_the_configuration(tmp_path: Path, envoy_program: str) -> None:
    """A gateway with most features passes `envoy --mode validate`."""
    done = validate(envoy_program, configuration(tmp_path)["static"], tmp_path)

    assert (done.returncode, "OK" in done.stdout) == (0, True), done.stderr[-2000:]


@pytest.mark.timeout(300)
def test_envoy_rejects_errors(tmp_path: Path, envoy_program: str) -> None:
    """An unknown cluster and a certificate with a foreign key fail. The other test depends on this."""
    config = configuration(tmp_path)
    lost = validate(envoy_program, config["static"].replace('"cluster": "web"', '"cluster": "wed"'), tmp_path)
    (tmp_path / "edge.key").write_text(certificate("api.example.com")[1])
    mixed = validate(envoy_program, config["static"], tmp_path)

    assert (lost.returncode, mixed.returncode) == (1, 1)
    assert "wed" in lost.stderr
