"""Test the errors of Kubespray's own checks, with scripts in place of its Ansible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.kubernetes import preflight
from primus_bootstrap.kubernetes.commands import Command, KubesprayPaths

if TYPE_CHECKING:
    from pathlib import Path


def programs(folder: Path, text: str) -> KubesprayPaths:
    """Return paths whose `ansible-playbook` is a script."""
    program = folder / "ansible-playbook"
    program.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    program.chmod(0o755)
    return KubesprayPaths(folder, folder, folder / "hosts.yaml", folder / "generated", folder / "facts", "v2.31.0")


def test_failed_assert_is_reported(tmp_path: Path) -> None:
    """The error has the host, the task and the message of a failed assert."""
    output = '{"plays": [{"tasks": [{"task": {"name": "Stop"}, "hosts": {"cp1": {"failed": true, "msg": "too old"}}}]}]}'
    with pytest.raises(PlanError, match=r"Kubespray v2\.31\.0 rejects this inventory: cp1: Stop: too old") as caught:
        preflight.check(programs(tmp_path, f"echo '{output}'; exit 2"), (), {})

    assert "no host was contacted" in caught.value.fix


def test_syntax_error_is_reported(tmp_path: Path) -> None:
    """The error has Ansible's ERROR line, not the warnings."""
    text = 'case "$*" in *--syntax-check*) echo "[WARNING]: x" >&2; echo "ERROR! no role" >&2; exit 4;; esac'
    with pytest.raises(PlanError, match=r"cannot parse its playbook scale\.yml: ERROR! no role"):
        preflight.check(programs(tmp_path, text), (Command("why", "scale.yml"),), {})
