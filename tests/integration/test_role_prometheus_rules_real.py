"""Alert rules, validated and tested with promtool."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap import content

if TYPE_CHECKING:
    from pathlib import Path

FILES = content.roles_dir() / "prometheus" / "files"
PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus); Molecule runs these tests too")
@pytest.mark.parametrize("path", sorted((FILES / "rules").glob("*.yml")), ids=lambda path: path.stem)
def test_promtool_accepts_the_rules_and_their_tests(path: Path) -> None:
    """Each rule fires in its tests and nowhere else."""
    for command in (["check", "rules", str(path)], ["test", "rules", str(FILES / "rules_tests" / path.name)]):
        done = subprocess.run([str(PROMTOOL), *command], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
