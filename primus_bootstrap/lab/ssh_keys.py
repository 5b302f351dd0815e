"""Generate the keys of a lab (the administrator's, the user's and the host keys) and pin the host keys in known_hosts."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.lab_values import PERSON

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.lab.lab_values import Lab, LabNode


def ensure_keys(lab: Lab) -> list[str]:
    """Generate missing keys; return one line per key."""
    changes = []
    for folder in (lab.ssh_dir.parent, lab.ssh_dir, lab.known_hosts.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    user_keys = {lab.key_file: f"primus-{lab.name}", lab.person_key_file: PERSON}
    keys = {**user_keys, **{host_key_file(lab, node): node.name for node in lab.nodes}}
    for path, comment in keys.items():
        if path.exists() and public_key(path):
            continue
        _generate(path, comment)
        changes.append(f"created the SSH key {path.name}")
    return changes


def host_key_file(lab: Lab, node: LabNode) -> Path:
    """Return the path of a node's private host key. `lab down` does not remove it."""
    return lab.ssh_dir / f"{node.name}_host_ed25519_key"


def public_key(private: Path) -> str:
    """Return the public key as `ssh-ed25519 AAAA…`, or an empty string if it is missing or damaged."""
    try:
        words = private.with_name(f"{private.name}.pub").read_text().split()
    except OSError:
        return ""
    return " ".join(words[:2]) if words[:1] == ["ssh-ed25519"] and len(words) >= 2 else ""


def fingerprint(public: str) -> str:
    """Return the fingerprint of a public key as ssh prints it: `SHA256:…`."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def pin_host_keys(lab: Lab) -> list[str]:
    """Write the nodes' host keys to the cluster's known_hosts; return the changes.

    Replaces other keys of these addresses, because the lab generated the host keys itself.
    """
    old = lab.known_hosts.read_text().splitlines() if lab.known_hosts.exists() else []
    keys = {node.address: public_key(host_key_file(lab, node)) for node in lab.nodes}
    expected = {f"{address} {key}" for address, key in keys.items()}
    kept = [line for line in old if line.strip() in expected or _address(line) not in keys]
    missing = [line for line in sorted(expected) if line not in {entry.strip() for entry in kept}]
    if kept == old and not missing:
        return []
    write_atomic(lab.known_hosts, "".join(f"{line}\n" for line in [*kept, *missing]), mode=0o600)
    return [f"pinned the host keys in {lab.known_hosts}"]


def _address(line: str) -> str:
    words = line.split()
    return words[0] if words else ""


def _generate(path: Path, comment: str) -> None:
    """Generate a key pair. The public key is renamed last: if it exists, the pair is complete."""
    part = path.with_name(f".{path.name}.part")
    for leftover in (part, part.with_name(f"{part.name}.pub")):
        leftover.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(part)], timeout_s=60)
    public = path.with_name(f"{path.name}.pub")
    public.unlink(missing_ok=True)
    part.replace(path)
    part.with_name(f"{part.name}.pub").replace(public)
