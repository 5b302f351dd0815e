#!/usr/bin/python
"""Write the accounts of the image registry: the Ansible module `oci_registry_accounts`.

Passwords are passed to htpasswd through its input only. community.general.htpasswd needs passlib on the host, cannot set the number of
bcrypt rounds, and does not remove other accounts. A hash that matches the configured password is kept, so a second run changes nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

CALL_S = 60
# 2^8 rounds, about 15 ms. The registry checks the password with every request, some 100 times in a pull of 50 layers. Passwords have at
# least 16 characters, so they cannot be found by brute force.
COST = "8"


def read_hashes(text: str) -> dict[str, str]:
    """Return the hash of each account of an htpasswd file."""
    pairs = (line.strip().partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in pairs if colon}


def plan(
    current: Mapping[str, str],
    accounts: Sequence[Mapping[str, str]],
    matches: Callable[[str, str, str], bool],
    create: Callable[[str, str], str],
) -> tuple[dict[str, str], list[str]]:
    """Return the new hashes, and a message for each change."""
    new: dict[str, str] = {}
    changes = [f"remove {name}" for name in current if name not in {one["name"] for one in accounts}]
    for one in accounts:
        name, password = one["name"], one["password"]
        known = current.get(name, "")
        if known.startswith("$2y$") and matches(name, known, password):
            new[name] = known
        else:
            new[name] = create(name, password)
            changes.append(f"change the password of {name}" if known else f"add {name}")
    return new, changes


def htpasswd(words: Sequence[str], password: str) -> subprocess.CompletedProcess[str]:
    """Run htpasswd with a password on its input."""
    return subprocess.run(["htpasswd", *words], input=password, capture_output=True, text=True, check=False, timeout=CALL_S)


def matches(name: str, known: str, password: str) -> bool:
    """Return whether a hash matches a password."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as stream:
        stream.write(f"{name}:{known}\n")
        stream.flush()
        return htpasswd(["-vi", stream.name, name], password).returncode == 0


def create(name: str, password: str) -> str:
    """Return a new bcrypt hash, the only type that the registry accepts.

    Raises:
        ValueError: htpasswd failed.
    """
    done = htpasswd(["-niB", "-C", COST, name], password)
    if done.returncode or "$2y$" not in done.stdout:
        raise ValueError(f"htpasswd created no hash for {name}: {done.stderr.strip()}")
    return done.stdout.strip().partition(":")[2]


def write(path: Path, text: str, group: str) -> None:
    """Replace the file atomically; the registry reloads it when it changes."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".htpasswd-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        shutil.chown(name, group=group)
        Path(name).chmod(0o640)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def main() -> None:
    """Compare the accounts with the file, and write it if it differs."""
    one = {"name": {"type": "str", "required": True}, "password": {"type": "str", "required": True, "no_log": True}}
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "group": {"type": "str", "required": True},
            "accounts": {"type": "list", "elements": "dict", "required": True, "options": one},
        },
        supports_check_mode=True,
    )
    params: Mapping[str, Any] = module.params
    path = Path(params["path"])
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        hashes, changes = plan(read_hashes(text), params["accounts"], matches, create)
        new = "".join(f"{name}:{value}\n" for name, value in hashes.items())
        if new != text and not module.check_mode:
            write(path, new, params["group"])
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        fix = f"reinstall apache2-utils (RHEL: httpd-tools), and check the free space with `df -h {path.parent}`"
        module.fail_json(msg=f"{path} cannot be written: {error}. Fix: {fix}")
    module.exit_json(changed=new != text, changes=changes)


if __name__ == "__main__":
    main()
