"""Writes and runs playbooks with plain Ansible, without this program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = str(Path(sys.executable).with_name("ansible-playbook"))


def run_playbook(
    hosts: Path | str, playbook: Path | str, *words: str, environment: Mapping[str, str] | None = None, timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a playbook, by its path below `playbooks/` or an absolute one, with further arguments and environment variables."""
    inherited = {**os.environ, "ANSIBLE_CONFIG": str(content.ansible_cfg()), "ANSIBLE_NOCOLOR": "1"}
    argv = [PROGRAM, "-i", str(hosts), str(content.playbooks_dir() / playbook), *words]
    return subprocess.run(argv, env={**inherited, **(environment or {})}, capture_output=True, text=True, timeout=timeout_s, check=False)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output with single spaces: Ansible wraps messages."""
    return " ".join((done.stdout + done.stderr).split())


def write_yaml(path: Path, data: Any) -> None:
    """Write a file of a role or playbook; missing folders are created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
