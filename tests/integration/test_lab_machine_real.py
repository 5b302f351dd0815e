"""Test the search for a container engine with scripted engines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.lab_values import MachineError
from primus_bootstrap.lab.machine import inspect_machine
from tests.unit.test_lab_machine import write_program

if TYPE_CHECKING:
    from pathlib import Path


def test_machine_without_engine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has each engine with its error, and the fix names the packages."""
    write_program(tmp_path, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    write_program(tmp_path, "sudo", 'shift; exec "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MachineError) as caught:
        inspect_machine()

    assert "podman: not installed" in caught.value.what
    assert "docker: Cannot connect to the Docker daemon" in caught.value.what
    assert "apt-get install podman" in caught.value.fix


def test_docker_is_used_without_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first engine that works is used."""
    write_program(tmp_path, "docker", "echo 28.2.2")
    write_program(tmp_path, "mmdebstrap", "exit 0")
    write_program(tmp_path, "sudo", 'shift; exec "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = inspect_machine()

    assert (machine.engine, machine.engine_version) == ("docker", "28.2.2")


def test_user_without_root_uses_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's command has the prefix `sudo -n`, because nodes of a rootless podman are not reachable."""
    write_program(tmp_path, "podman", "echo 5.4.2")
    write_program(tmp_path, "mmdebstrap", "exit 0")
    write_program(tmp_path, "sudo", 'shift; exec "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert inspect_machine().engine_argv == ("sudo", "-n", "podman")
