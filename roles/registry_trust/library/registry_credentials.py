#!/usr/bin/python
"""Keep root's credentials for registries in ~/.docker/config.json: the Ansible module `registry_credentials`.

The file is shared with people who log in by hand: only entries of ours are written, and only those that were ours go. Which those are
stands in a record beside it, which holds addresses and no secret.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def merged(there: Mapping[str, Any], credentials: Sequence[Mapping[str, str]], ours: Sequence[str]) -> dict[str, Any]:
    """Return what the file is to hold: other people's entries as they are, ours as stated, former ones of ours gone."""
    wanted = {one["address"]: base64.b64encode(f"{one['username']}:{one['password']}".encode()).decode("ascii") for one in credentials}
    former = there.get("auths") or {}
    auths = {address: entry for address, entry in former.items() if address not in ours or address in wanted}
    for address, auth in wanted.items():
        auths[address] = {**{key: value for key, value in auths.get(address, {}).items() if key != "identitytoken"}, "auth": auth}
    return {**there, "auths": auths} if auths or "auths" in there else dict(there)


def read_json(path: Path) -> dict[str, Any]:
    """Return the settings of a file; nothing where there is none.

    Raises:
        ValueError: it holds something else.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    found = json.loads(text or "{}")
    if not isinstance(found, dict):
        raise ValueError("it holds no mapping")  # noqa: TRY004 (to the caller it is a file that cannot be read)
    return found


def write(path: Path, text: str, mode: int) -> None:
    """Replace a file at once, its mode from the start; make its folder where there is none."""
    path.parent.mkdir(mode=0o700 if mode == 0o600 else 0o755, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".primus-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def main() -> None:
    """Read the arguments, compare, write what differs."""
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
        there = read_json(path)
        wanted = merged(there, module.params["credentials"], ours)
        noted = "".join(f"{one['address']}\n" for one in module.params["credentials"])
        loose = path.exists() and path.stat().st_mode & 0o077 != 0
        changed = wanted != there or (bool(wanted) and loose)
        if changed and not module.check_mode:
            # The record first: killed in between, an entry is still known as ours.
            write(record, "".join(f"{address}\n" for address in sorted({*ours, *noted.split()})), 0o644)
            write(path, json.dumps(wanted, indent=2) + "\n", 0o600)
        if (not record.exists() or record.read_text("utf-8") != noted) and not module.check_mode:
            write(record, noted, 0o644)
    except (OSError, ValueError) as error:
        module.fail_json(
            msg=f"{path} cannot be kept: {error}. Fix: mend or remove it; `podman login` of other registries must then be repeated"
        )
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
