"""Build the tar archive with the files of one node: host keys, names, apt settings, certificates and proxies."""

from __future__ import annotations

import base64
import io
import tarfile
import time
from typing import TYPE_CHECKING

from primus_bootstrap.lab.apt_settings import certificate_bundle, local_certificates, proxy_environment
from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.lab_values import USER
from primus_bootstrap.lab.ssh_keys import host_key_file, public_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from primus_bootstrap.lab.apt_settings import AptSettings
    from primus_bootstrap.lab.lab_values import Lab, LabNode
    from primus_bootstrap.lab.machine import Machine

_DISTRIBUTION_KEYS = "/usr/share/keyrings/"


def node_archive(machine: Machine, lab: Lab, node: LabNode, settings: AptSettings, extra: Mapping[str, str] | None = None) -> bytes:
    """Return a tar archive to extract at the node's root; `extra` has the texts of further files by their path."""
    files = _files(machine, lab, node, settings) | {path: (0o644, text.encode()) for path, text in (extra or {}).items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, (mode, content) in sorted(files.items()):
            _add(archive, path, content, mode=mode)
        end = archive.offset
    # Without tarfile's padding after the two blocks that end an archive: podman does not read it, and `podman cp` fails with a broken
    # pipe if podman has closed the stream.
    return buffer.getvalue()[: end + 2 * tarfile.BLOCKSIZE]


def _files(machine: Machine, lab: Lab, node: LabNode, settings: AptSettings) -> dict[str, tuple[int, bytes]]:
    host_key = host_key_file(lab, node)
    bundle = certificate_bundle()
    files = {
        "/etc/hosts": (0o644, f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{node.address} {node.name}\n".encode()),
        "/etc/ssh/ssh_host_ed25519_key": (0o600, host_key.read_bytes()),
        "/etc/ssh/ssh_host_ed25519_key.pub": (0o644, f"{public_key(host_key)} {node.name}\n".encode()),
        f"/etc/ssh/authorized_keys/{USER}": (0o644, f"{public_key(lab.key_file)}\n".encode()),
        "/etc/apt/sources.list.d/machine.sources": (0o644, settings.sources_text(node.suite).encode()),
        "/etc/apt/apt.conf.d/95primus-lab": (0o644, settings.options_text().encode()),
    }
    for path in settings.files:
        # The image contains the keyrings of its own release.
        if not str(path).startswith(_DISTRIBUTION_KEYS) or "-archive-" not in path.name:
            files[str(path)] = (0o644 if path.stat().st_mode & 0o004 else 0o600, _read(machine, path))
    for path in settings.secret_files:
        files[f"/etc/apt/auth.conf.d/{path.name}"] = (0o600, _read(machine, path))
    if bundle:
        files["/etc/ssl/certs/ca-certificates.crt"] = (0o644, bundle)
    for number, certificate in enumerate(local_certificates(bundle), start=1):
        # update-ca-certificates reads it from here when a role adds an authority.
        files[f"/usr/local/share/ca-certificates/machine-{number}.crt"] = (0o644, f"{certificate}\n".encode())
    proxies = proxy_environment(str(lab.subnet))
    if proxies:
        files["/etc/environment"] = (0o644, "".join(f'{name}="{value}"\n' for name, value in proxies.items()).encode())
    return files


def _read(machine: Machine, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError:
        return base64.b64decode(run([*machine.sudo, "base64", str(path)], timeout_s=30).stdout)


def _add(archive: tarfile.TarFile, path: str, content: bytes, *, mode: int) -> None:
    """Add a file with mode and content. podman makes root its owner."""
    entry = tarfile.TarInfo(path.strip("/"))
    entry.mode = mode
    entry.size = len(content)
    entry.mtime = time.time()
    archive.addfile(entry, io.BytesIO(content))
