"""The native trainer reads and writes weights of Hugging Face: its logits are those of the transformers package."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.backends.backend_rig import LIMIT_S, python_of

pytestmark = [pytest.mark.backend, pytest.mark.timeout(LIMIT_S)]
_SAME = 1e-4  # of the standard deviation of the logits: rounding in fp32


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """The differences by model; the environment of TRL has transformers."""
    script = Path(__file__).with_name("compare_logits.py")
    command = [python_of("trl"), "-W", "ignore", str(script), str(tmp_path_factory.mktemp("weights"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    return {record["name"]: record for record in records}


@pytest.mark.parametrize("name", ["llama", "llama-3.1", "tied", "mixtral"])
def test_logits_are_those_of_transformers(name: str, compared: dict[str, dict[str, float]]) -> None:
    """Weights of transformers read here, and weights of this trainer read there. One changed setting gives other logits."""
    found = compared[name]
    assert found["spread"] > 0.1
    assert found["read"] < _SAME * found["spread"]
    assert found["written"] < _SAME * found["spread"]
    assert found["other"] > 100 * _SAME * found["spread"]
