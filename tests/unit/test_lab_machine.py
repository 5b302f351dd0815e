"""Test the requirements of the lab on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.lab_values import MachineError
from primus_bootstrap.lab.machine import cache_dir, inspect_machine, release

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ID=debian\nVERSION_CODENAME=bookworm\n", ("bookworm", ("bookworm", "trixie"))),
        ("ID=debian\nVERSION_CODENAME=trixie\n", ("trixie", ("bookworm", "trixie"))),
        ("ID=debian\nPRETTY_NAME='Debian sid'\n", ("sid", ("bookworm", "trixie"))),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_CODENAME=noble\nUBUNTU_CODENAME=noble\n", ("noble", ("noble",))),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\nVERSION_CODENAME=wilma\nUBUNTU_CODENAME=noble\n", ("noble", ("noble",))),
    ],
)
def test_node_releases_depend_on_the_distribution(tmp_path: Path, text: str, expected: tuple[str, tuple[str, ...]]) -> None:
    """Debian and its derivatives get Debian 12 and 13, Ubuntu and its derivatives their Ubuntu release."""
    path = tmp_path / "os-release"
    path.write_text(text)

    assert release(path) == expected


@pytest.mark.parametrize("text", ["ID=fedora\nPRETTY_NAME='Fedora Linux 42'\n", None])
def test_other_distributions_are_refused(tmp_path: Path, text: str | None) -> None:
    """The error names the supported distributions; the fix says that `apply` to real hosts works."""
    path = tmp_path / "os-release"
    if text is not None:
        path.write_text(text)

    with pytest.raises(MachineError) as caught:
        release(path)

    assert "Debian or Ubuntu" in caught.value.what
    assert "`apply` to real hosts works" in caught.value.fix


def test_cache_folder_is_below_xdg_cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is below XDG_CACHE_HOME. A folder that cannot be created raises MachineError."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "primus-bootstrap"

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(MachineError) as caught:
        cache_dir()
    assert "XDG_CACHE_HOME" in caught.value.fix


def write_program(folder: Path, name: str, script: str) -> None:
    """Write an executable script to a folder."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_user_without_root_and_sudo_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that podman needs root and that sudo is missing."""
    write_program(tmp_path, "podman", "echo 5.4.2")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(MachineError) as caught:
        inspect_machine()

    assert "sudo is not installed" in caught.value.what
