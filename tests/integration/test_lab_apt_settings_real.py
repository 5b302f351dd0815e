"""Test that this machine's apt settings are read and adapted to another release."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.apt_settings import (
    read_apt_settings,
)
from tests.unit.test_lab_apt_settings import machine

if TYPE_CHECKING:
    from pathlib import Path

DEB822 = """\
# the distribution
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: https://vendor.example/linux/debian
Suites: bookworm
Components: main
Signed-By: /etc/apt/keyrings/vendor.asc

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the proxy variables of the machine that runs the tests."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "ftp_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


pytestmark = pytest.mark.skipif(shutil.which("apt-config") is None, reason="this machine has no apt")


def test_sources_are_adapted_to_another_release(tmp_path: Path) -> None:
    """Main, updates and security get the other release; backports, other vendors, disabled and source entries are ignored."""
    settings = read_apt_settings("bookworm", root=machine(tmp_path, sources_DOT_list_DOT_d__debian_DOT_sources=DEB822))

    assert settings.sources_text("trixie") == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie trixie-updates\nComponents: main contrib\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
        "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: trixie-security\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )


def test_mirror_with_its_own_key_is_used(tmp_path: Path) -> None:
    """Without a source signed by the distribution, a mirror with its own key is used, and its key is copied."""
    key = tmp_path / "mirror.gpg"
    key.write_text("key")
    line = f"deb [signed-by={key}] https://mirror.example/debian bookworm main\n"
    settings = read_apt_settings("bookworm", root=machine(tmp_path, sources_DOT_list=line))

    assert [source.uris for source in settings.sources] == [("https://mirror.example/debian",)]
    assert settings.files == (key,)


@pytest.mark.parametrize(
    ("old", "new"), [("stable", "trixie"), ("stable-security", "trixie-security"), ("bookworm/updates", "trixie/updates")]
)
def test_aliases_of_the_release_are_adapted(tmp_path: Path, old: str, new: str) -> None:
    """A suite such as `stable` is replaced by the release's code name."""
    settings = read_apt_settings("bookworm", root=machine(tmp_path, sources_DOT_list=f"deb http://m.example/debian {old} main\n"))

    assert f"Suites: {new}\n" in settings.sources_text("trixie")


def test_credentials_are_passed_by_path(tmp_path: Path) -> None:
    """The settings contain the paths of files with passwords, not their contents."""
    root = machine(
        tmp_path,
        sources_DOT_list="deb http://m.example/debian bookworm main\n",
        auth_DOT_conf_DOT_d__m_DOT_conf="machine m.example password hunter2\n",
    )
    settings = read_apt_settings("bookworm", root=root)

    assert settings.secret_files == (root / "etc/apt/auth.conf.d/m.conf",)
    assert "hunter2" not in repr(settings)


def test_proxy_of_the_environment_becomes_an_apt_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If apt has no proxy, the environment's proxy becomes an option of apt.conf."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True, timeout=120).stdout
    if "Acquire::http::Proxy " in dump:
        pytest.skip("apt on this machine has a proxy of its own, which wins")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    settings = read_apt_settings("bookworm", root=machine(tmp_path, sources_DOT_list="deb http://m.example/debian bookworm main\n"))

    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in settings.options
