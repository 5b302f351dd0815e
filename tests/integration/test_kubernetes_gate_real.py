"""What is judged before Kubespray runs: upgrades by one minor, inside the window, and no machines of somebody else's cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.kubernetes import preflight
from primus_bootstrap.kubernetes.commands import Command, KubesprayPaths

if TYPE_CHECKING:
    from pathlib import Path


def programs(folder: Path, text: str) -> KubesprayPaths:
    """Return a place whose `ansible-playbook` is a script."""
    program = folder / "ansible-playbook"
    program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    program.chmod(0o755)
    return KubesprayPaths(folder, folder, folder / "hosts.yaml", folder / "generated", folder / "facts")


def test_the_releases_own_words_are_told(tmp_path: Path) -> None:
    """What its asserts refuse comes out as host, task and message, and nothing was contacted."""
    said = '{"plays": [{"tasks": [{"task": {"name": "Stop"}, "hosts": {"cp1": {"failed": true, "msg": "too old"}}}]}]}'
    with pytest.raises(PlanError, match="refuses this inventory: cp1: Stop: too old") as caught:
        preflight.check(programs(tmp_path, f"echo '{said}'; exit 2"), (), {})

    assert "no host was contacted" in caught.value.fix


def test_a_playbook_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Its error line is told, not the warnings around it."""
    text = 'case "$*" in *--syntax-check*) echo "[WARNING]: x" >&2; echo "ERROR! no role" >&2; exit 4;; esac'
    with pytest.raises(PlanError, match=r"cannot read its playbook scale\.yml: ERROR! no role"):
        preflight.check(programs(tmp_path, text), (Command("why", "scale.yml"),), {})
