"""What the lab makes of the machine that it is on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.lab_values import MachineError
from primus_bootstrap.lab.machine import look_at_machine
from tests.unit.test_lab_machine import write_program

if TYPE_CHECKING:
    from pathlib import Path


def test_a_machine_without_an_engine_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine that was tried is named with what it said, and the fix names the packages."""
    write_program(tmp_path, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    write_program(tmp_path, "sudo", 'shift; exec "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MachineError) as caught:
        look_at_machine()

    assert "podman: not installed" in caught.value.what
    assert "docker: Cannot connect to the Docker daemon" in caught.value.what
    assert "apt-get install podman" in caught.value.fix


def test_docker_is_taken_where_podman_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first engine that answers is used, with the version that it gives."""
    write_program(tmp_path, "docker", "echo 28.2.2")
    write_program(tmp_path, "mmdebstrap", "exit 0")
    write_program(tmp_path, "sudo", 'shift; exec "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = look_at_machine()

    assert (machine.engine, machine.engine_version) == ("docker", "28.2.2")


def test_a_user_without_root_calls_the_engine_through_sudo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root's podman gives nodes addresses that this machine can reach, so others go through sudo."""
    write_program(tmp_path, "podman", "echo 5.4.2")
    write_program(tmp_path, "mmdebstrap", "exit 0")
    write_program(tmp_path, "sudo", 'shift; exec "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert look_at_machine().engine_argv == ("sudo", "-n", "podman")
