"""What the lab makes of the machine that it is on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.lab_values import MachineError
from primus_bootstrap.lab.machine import cache_dir, look_at_machine, release

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
def test_the_releases_of_the_nodes_follow_from_the_machines_family(
    tmp_path: Path, text: str, expected: tuple[str, tuple[str, ...]]
) -> None:
    """Debian and what is made from it has Debian 12 and 13, Ubuntu its own release."""
    path = tmp_path / "os-release"
    path.write_text(text)

    assert release(path) == expected


@pytest.mark.parametrize("text", ["ID=fedora\nPRETTY_NAME='Fedora Linux 42'\n", None])
def test_other_machines_are_told_what_still_works(tmp_path: Path, text: str | None) -> None:
    """A machine without apt packages gets no lab, and the message says that real hosts can still be managed from it."""
    path = tmp_path / "os-release"
    if text is not None:
        path.write_text(text)

    with pytest.raises(MachineError) as caught:
        release(path)

    assert "Debian or Ubuntu" in caught.value.what
    assert "apply works from here" in caught.value.fix


def test_the_cache_follows_the_users_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME moves the cache, and a place that cannot be written is an error with a fix."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "primus-bootstrap"

    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(MachineError) as caught:
        cache_dir()
    assert "XDG_CACHE_HOME" in caught.value.fix


def write_program(folder: Path, name: str, script: str) -> None:
    """Put a program on the path that the test gives."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_user_with_neither_root_nor_sudo_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says why podman alone does not do."""
    write_program(tmp_path, "podman", "echo 5.4.2")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(MachineError) as caught:
        look_at_machine()

    assert "sudo is not installed" in caught.value.what
