"""The machine's apt settings, read in both forms and turned to another release."""

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
    """Take the proxies of the machine that runs the tests out of the way."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "ftp_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


pytestmark = pytest.mark.skipif(shutil.which("apt-config") is None, reason="this machine has no apt")


def test_the_distributions_sources_are_turned_to_the_other_release(tmp_path: Path) -> None:
    """Main, updates and security follow the release; backports, other vendors, disabled and source entries are left out."""
    settings = read_apt_settings("bookworm", root=machine(tmp_path, sources_DOT_list_DOT_d__debian_DOT_sources=DEB822))

    assert settings.sources_text("trixie") == (
        "Types: deb\nURIs: http://mirror.example/debian\nSuites: trixie trixie-updates\nComponents: main contrib\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n"
        "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: trixie-security\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )


def test_a_company_mirror_with_a_key_of_its_own_is_used(tmp_path: Path) -> None:
    """Where nothing is signed by the distribution itself, the mirror's entries count, and its key goes along."""
    key = tmp_path / "mirror.gpg"
    key.write_text("key")
    line = f"deb [signed-by={key}] https://mirror.example/debian bookworm main\n"
    settings = read_apt_settings("bookworm", root=machine(tmp_path, sources_DOT_list=line))

    assert [source.uris for source in settings.sources] == [("https://mirror.example/debian",)]
    assert settings.files == (key,)


@pytest.mark.parametrize(
    ("old", "new"), [("stable", "trixie"), ("stable-security", "trixie-security"), ("bookworm/updates", "trixie/updates")]
)
def test_aliases_of_the_release_are_turned_as_well(tmp_path: Path, old: str, new: str) -> None:
    """A machine whose sources say `stable` has a lab of the named releases."""
    settings = read_apt_settings("bookworm", root=machine(tmp_path, sources_DOT_list=f"deb http://m.example/debian {old} main\n"))

    assert f"Suites: {new}\n" in settings.sources_text("trixie")


def test_credentials_are_named_and_not_read(tmp_path: Path) -> None:
    """Files with passwords are passed on by path, so that nothing of them can reach a message or an argument."""
    root = machine(
        tmp_path,
        sources_DOT_list="deb http://m.example/debian bookworm main\n",
        auth_DOT_conf_DOT_d__m_DOT_conf="machine m.example password hunter2\n",
    )
    settings = read_apt_settings("bookworm", root=root)

    assert settings.secret_files == (root / "etc/apt/auth.conf.d/m.conf",)
    assert "hunter2" not in repr(settings)


def test_the_environments_proxy_reaches_apt_in_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes do not see this machine's environment, so its proxies become lines of apt.conf, where apt has none of its own."""
    dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True, timeout=120).stdout
    if "Acquire::http::Proxy " in dump:
        pytest.skip("apt on this machine has a proxy of its own, which wins")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    settings = read_apt_settings("bookworm", root=machine(tmp_path, sources_DOT_list="deb http://m.example/debian bookworm main\n"))

    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in settings.options
