"""Test the names of images and the arguments of mmdebstrap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.lab import image as image_module
from primus_bootstrap.lab.apt_settings import AptSettings, AptSource
from primus_bootstrap.lab.image import image_for
from primus_bootstrap.lab.machine import Machine

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_image_name_depends_on_its_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal inputs give equal names; another release or package list gives another name."""
    machine = Machine("podman", "4.3.1", (), "bookworm", ("bookworm", "trixie"), tmp_path)
    trixie, bookworm = image_for(machine, "trixie"), image_for(machine, "bookworm")

    assert trixie == image_for(machine, "trixie")
    assert trixie.reference != bookworm.reference
    assert trixie.archive.parent == tmp_path / "images"

    monkeypatch.setattr(image_module, "PACKAGES", (*image_module.PACKAGES, "curl"))
    assert image_for(machine, "trixie").reference != trixie.reference


def test_credentials_are_passed_by_path_only(tmp_path: Path) -> None:
    """The arguments of mmdebstrap, which every user of the machine can read, contain no password and no proxy."""
    secret = tmp_path / "auth.conf"
    secret.write_text("machine m.example login u password hunter2\n")
    source = AptSource(("http://m.example/debian",), ("bookworm",), ("main",))
    settings = AptSettings("bookworm", (source,), ('Acquire::http::Proxy "http://u:hunter3@proxy:1";',), (), (secret,))
    folder = tmp_path / "work"
    folder.mkdir()

    argv = " ".join(image_module.mmdebstrap_argv("trixie", settings, folder))

    assert "hunter" not in argv
    assert str(secret) in argv
    assert "hunter3" in (folder / "apt.conf").read_text()
