"""Test that apt's sources are parsed in both formats and adapted to another release."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.apt_settings import (
    AptSettings,
    AptSource,
    certificate_bundle,
    local_certificates,
    parse_sources,
    proxy_environment,
    read_apt_settings,
)
from primus_bootstrap.lab.lab_values import MachineError

if TYPE_CHECKING:
    from pathlib import Path


def machine(root: Path, **files: str) -> Path:
    """Write files of a machine below `root`; `__` in a name is a slash, `_DOT_` a dot, and paths are relative to etc/apt."""
    for name, text in files.items():
        path = root / "etc/apt" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "etc/apt/sources.list.d").mkdir(parents=True, exist_ok=True)
    return root


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the proxy variables of the machine that runs the tests."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "ftp_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


pytestmark = pytest.mark.skipif(shutil.which("apt-config") is None, reason="this machine has no apt")


def test_one_line_entries_are_parsed() -> None:
    """Options in brackets become fields; comments and deb-src lines are ignored."""
    text = """\
# deb http://off.example/debian bookworm main
deb [arch=amd64,arm64 signed-by=/k.gpg trusted=yes] http://m.example/debian bookworm main contrib # why
deb-src http://m.example/debian bookworm main
deb http://s.example/debian-security bookworm-security main
"""

    assert parse_sources(text, one_line=True) == [
        AptSource(
            ("http://m.example/debian",),
            ("bookworm",),
            ("main", "contrib"),
            (("Architectures", "amd64 arm64"), ("Signed-By", "/k.gpg"), ("Trusted", "yes")),
        ),
        AptSource(("http://s.example/debian-security",), ("bookworm-security",), ("main",)),
    ]


def test_embedded_key_is_unchanged() -> None:
    """A multi-line Signed-By keeps its lines and their indentation."""
    text = (
        "Types: deb\nURIs: http://m.example\nSuites: noble\nComponents: main\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ\n"
    )
    (source,) = parse_sources(text, one_line=False)
    settings = AptSettings("noble", (source,), (), (), ())

    assert "Signed-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ\n" in settings.sources_text("noble")


@pytest.mark.parametrize("text", ["", "deb cdrom:[disc]/ bookworm main\n", "deb http://m.example/debian bookworm contrib\n"])
def test_machine_without_usable_source_is_refused(tmp_path: Path, text: str) -> None:
    """A machine without a network source for its release raises MachineError."""
    with pytest.raises(MachineError) as caught:
        read_apt_settings("bookworm", root=machine(tmp_path, sources_DOT_list=text))

    assert "no apt source for bookworm" in caught.value.what
    assert "sources.list.d" in caught.value.fix


def test_no_proxy_includes_the_network_of_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a proxy, no_proxy contains the lab's network; without one, the nodes get no proxy variables."""
    assert proxy_environment("10.187.1.0/24") == {}

    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", ".example")

    assert proxy_environment("10.187.1.0/24")["no_proxy"] == ".example,localhost,127.0.0.1,10.187.1.0/24"


def test_local_certificates_exclude_those_of_the_distribution(tmp_path: Path) -> None:
    """The comparison with the distribution's certificates ignores white space."""
    shipped = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    own = "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----"
    (tmp_path / "mozilla").mkdir()
    (tmp_path / "mozilla/a.crt").write_text(shipped)

    assert local_certificates(f"{shipped.replace('AAAA', 'AA AA')}{own}\n".encode(), tmp_path) == (own,)
    assert certificate_bundle(tmp_path / "none.crt") == b""
