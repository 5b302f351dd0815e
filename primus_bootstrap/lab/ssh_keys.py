"""Keys of a lab: the administrator's and the person's key, the nodes' host keys, and the pins in the cluster's known_hosts."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.lab.lab_values import PERSON
from primus_bootstrap.lab.program import run

if TYPE_CHECKING:
    from pathlib import Path

    from primus_bootstrap.lab.lab_values import Lab, LabNode


def ensure_keys(lab: Lab) -> list[str]:
    """Make the keys that are missing; return what was made."""
    made = []
    for folder in (lab.ssh_dir.parent, lab.ssh_dir, lab.known_hosts.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    people = {lab.key_file: f"primus-{lab.name}", lab.person_key_file: PERSON}
    wanted = {**people, **{host_key_file(lab, node): node.name for node in lab.nodes}}
    for path, comment in wanted.items():
        if path.exists() and public_key(path):
            continue
        _generate(path, comment)
        made.append(f"made the key {path.name}")
    return made


def host_key_file(lab: Lab, node: LabNode) -> Path:
    """Return where a node's private host key is kept, so that it survives `lab down`."""
    return lab.ssh_dir / f"{node.name}_host_ed25519_key"


def public_key(private: Path) -> str:
    """Return the public half as `ssh-ed25519 AAAA…`, empty where it is missing or broken."""
    try:
        words = private.with_name(f"{private.name}.pub").read_text().split()
    except OSError:
        return ""
    return " ".join(words[:2]) if words[:1] == ["ssh-ed25519"] and len(words) >= 2 else ""


def fingerprint(public: str) -> str:
    """Return what ssh shows of a public key: `SHA256:…`."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def pin_host_keys(lab: Lab) -> list[str]:
    """Write the nodes' host keys into the cluster's known_hosts; return what changed.

    The lab made these keys, so it may replace a pin; nothing else may.
    """
    old = lab.known_hosts.read_text().splitlines() if lab.known_hosts.exists() else []
    wanted = {node.address: public_key(host_key_file(lab, node)) for node in lab.nodes}
    right = {f"{address} {key}" for address, key in wanted.items()}
    kept = [line for line in old if line.strip() in right or _address(line) not in wanted]
    missing = [line for line in sorted(right) if line not in {entry.strip() for entry in kept}]
    if kept == old and not missing:
        return []
    write_atomic(lab.known_hosts, "".join(f"{line}\n" for line in [*kept, *missing]), mode=0o600)
    return [f"pinned the host keys in {lab.known_hosts}"]


def _address(line: str) -> str:
    words = line.split()
    return words[0] if words else ""


def _generate(path: Path, comment: str) -> None:
    """Make a key pair; the public half is renamed last, so that its presence means a whole pair."""
    part = path.with_name(f".{path.name}.part")
    for leftover in (part, part.with_name(f"{part.name}.pub")):
        leftover.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(part)], timeout_s=60)
    public = path.with_name(f"{path.name}.pub")
    public.unlink(missing_ok=True)
    part.replace(path)
    part.with_name(f"{part.name}.pub").replace(public)
