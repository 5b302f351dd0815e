#!/usr/bin/python
"""Write root's credentials for registries into ~/.docker/config.json: the Ansible module `registry_credentials`.

community.docker.docker_login contacts the registry and needs docker's Python library. Other logins in the file are kept: the module
changes only entries that it has written before. A record has their addresses, without secrets.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.atomic_files import write_atomic
from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def merge(current: Mapping[str, Any], credentials: Sequence[Mapping[str, str]], ours: Sequence[str]) -> dict[str, Any]:
    """Return the new content of the file: other entries unchanged, ours as configured, without old ones of ours."""
    new = {one["address"]: base64.b64encode(f"{one['username']}:{one['password']}".encode()).decode("ascii") for one in credentials}
    entries = current.get("auths") or {}
    auths = {address: entry for address, entry in entries.items() if address not in ours or address in new}
    for address, auth in new.items():
        auths[address] = {**{key: value for key, value in auths.get(address, {}).items() if key != "identitytoken"}, "auth": auth}
    return {**current, "auths": auths} if auths or "auths" in current else dict(current)


def read_json(path: Path) -> dict[str, Any]:
    """Return the settings in a file; empty if there is none.

    Raises:
        ValueError: It is not a JSON object.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    found = json.loads(text or "{}")
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 (to the caller it is a file that cannot be read)
    return found


def write(path: Path, text: str, mode: int) -> None:
    """Replace a file atomically, with its final mode; create its folder if it is missing."""
    path.parent.mkdir(mode=0o700 if mode == 0o600 else 0o755, parents=True, exist_ok=True)
    write_atomic(path, text, mode=mode)


def main() -> None:
    """Compare the credentials with the file, and write it if it differs."""
    one = {
        "address": {"type": "str", "required": True},
        "username": {"type": "str", "required": True},
        "password": {"type": "str", "required": True, "no_log": True},
        "pem": {"type": "str"},
        "ca_file": {"type": "str"},
    }
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "record": {"type": "path", "required": True},
            "credentials": {"type": "list", "elements": "dict", "required": True, "options": one},
        },
        supports_check_mode=True,
    )
    path, record = Path(module.params["path"]), Path(module.params["record"])
    os.umask(0o022)
    try:
        ours = record.read_text("utf-8").split() if record.exists() else []
        current = read_json(path)
        new = merge(current, module.params["credentials"], ours)
        addresses = "".join(f"{one['address']}\n" for one in module.params["credentials"])
        others_can_read = path.exists() and path.stat().st_mode & 0o077 != 0
        changed = new != current or (bool(new) and others_can_read)
        if changed and not module.check_mode:
            # The record first: if the run is killed in between, the entries are still known as ours.
            write(record, "".join(f"{address}\n" for address in sorted({*ours, *addresses.split()})), 0o644)
            write(path, json.dumps(new, indent=2) + "\n", 0o600)
        if (not record.exists() or record.read_text("utf-8") != addresses) and not module.check_mode:
            write(record, addresses, 0o644)
    except (OSError, ValueError) as error:
        module.fail_json(
            msg=f"{path} cannot be written: {error}. Fix: correct or remove it; then repeat `podman login` for other registries"
        )
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
