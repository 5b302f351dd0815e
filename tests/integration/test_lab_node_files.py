"""Test the archive with the files of one node."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

from primus_bootstrap.lab.apt_settings import AptSettings, AptSource
from primus_bootstrap.lab.lab_values import make_lab, subnet_candidates
from primus_bootstrap.lab.machine import Machine
from primus_bootstrap.lab.node_files import node_archive
from primus_bootstrap.lab.ssh_keys import ensure_keys, host_key_file, public_key

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def unpack(raw: bytes) -> dict[str, tuple[int, str]]:
    """Return mode and text of every file of an archive that ends with two empty blocks and no more."""
    whole = len(raw.rstrip(b"\0"))
    assert raw.endswith(bytes(2 * tarfile.BLOCKSIZE))
    assert len(raw) - whole < 3 * tarfile.BLOCKSIZE
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        members = [(entry, archive.extractfile(entry)) for entry in archive.getmembers()]
        return {entry.name: (entry.mode, content.read().decode()) for entry, content in members if content}


def test_archive_has_keys_names_and_apt_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive has the host key, the lab's public key, /etc/hosts, apt sources, credentials with mode 0600, and proxies."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "no_proxy", "FTP_PROXY", "ftp_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    secret = tmp_path / "m.conf"
    secret.write_text("machine m password p\n")
    lab = make_lab("lab", tmp_path, subnet=subnet_candidates("lab")[0], count=2, suites=("bookworm", "trixie"))
    ensure_keys(lab)
    machine = Machine("podman", "4.3.1", (), "bookworm", ("bookworm", "trixie"), tmp_path)
    source = AptSource(("http://m.example/debian",), ("bookworm",), ("main",))
    settings = AptSettings("bookworm", (source,), ('Acquire::Retries "3";',), (), (secret,))

    files = unpack(node_archive(machine, lab, lab.nodes[1], settings))

    assert files["etc/ssh/ssh_host_ed25519_key"] == (0o600, host_key_file(lab, lab.nodes[1]).read_text())
    assert files["etc/ssh/authorized_keys/primus"] == (0o644, public_key(lab.key_file) + "\n")
    assert "10.187.1.12 node2" in files["etc/hosts"][1]
    assert "Suites: trixie\n" in files["etc/apt/sources.list.d/machine.sources"][1]
    assert files["etc/apt/apt.conf.d/95primus-lab"][1] == 'Acquire::Retries "3";\n'
    assert files["etc/apt/auth.conf.d/m.conf"] == (0o600, "machine m password p\n")
    assert 'https_proxy="http://proxy.example:3128"\n' in files["etc/environment"][1]
    assert lab.key_file.read_text() not in str(files), "the user's private key stays on this machine"
