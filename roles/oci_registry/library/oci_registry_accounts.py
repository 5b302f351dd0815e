#!/usr/bin/python
"""Keep the accounts of the image registry: the Ansible module `oci_registry_accounts`. Passwords go to htpasswd through its input only.

A hash that fits the stated password stays as it is, so a second run changes nothing; an account that is not stated goes.
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
# 2^8 rounds, some 15 ms. The registry checks the password with every request, a pull of 50 layers asks 100 times, and passwords of
# 16 characters and more are not found by trying.
COST = "8"


def read_hashes(text: str) -> dict[str, str]:
    """Return the hash of each account of an htpasswd file."""
    pairs = (line.strip().partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in pairs if colon}


def plan(
    there: Mapping[str, str],
    accounts: Sequence[Mapping[str, str]],
    fits: Callable[[str, str, str], bool],
    make: Callable[[str, str], str],
) -> tuple[dict[str, str], list[str]]:
    """Return the hashes that are to be there, and what changes, a line an account."""
    wanted: dict[str, str] = {}
    said = [f"{name} goes" for name in there if name not in {one["name"] for one in accounts}]
    for one in accounts:
        name, password = one["name"], one["password"]
        known = there.get(name, "")
        if known.startswith("$2y$") and fits(name, known, password):
            wanted[name] = known
        else:
            wanted[name] = make(name, password)
            said.append(f"{name} gets its password" if known else f"{name} comes")
    return wanted, said


def htpasswd(words: Sequence[str], password: str) -> subprocess.CompletedProcess[str]:
    """Run htpasswd with a password on its input."""
    return subprocess.run(["htpasswd", *words], input=password, capture_output=True, text=True, check=False, timeout=CALL_S)


def fits(name: str, known: str, password: str) -> bool:
    """Whether a hash is that of a password."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as stream:
        stream.write(f"{name}:{known}\n")
        stream.flush()
        return htpasswd(["-vi", stream.name, name], password).returncode == 0


def make(name: str, password: str) -> str:
    """Return a new hash by bcrypt, the one kind that the registry takes.

    Raises:
        ValueError: htpasswd made none.
    """
    done = htpasswd(["-niB", "-C", COST, name], password)
    if done.returncode or "$2y$" not in done.stdout:
        raise ValueError(f"htpasswd made no hash for {name}: {done.stderr.strip()}")
    return done.stdout.strip().partition(":")[2]


def write(path: Path, text: str, group: str) -> None:
    """Replace the file at once; the registry reads it anew when it changes."""
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
    """Read the arguments, compare, write what differs."""
    one = {"name": {"type": "str", "required": True}, "password": {"type": "str", "required": True, "no_log": True}}
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "group": {"type": "str", "required": True},
            "accounts": {"type": "list", "elements": "dict", "required": True, "options": one},
        },
        supports_check_mode=True,
    )
    wanted: Mapping[str, Any] = module.params
    path = Path(wanted["path"])
    try:
        text = path.read_text("utf-8") if path.exists() else ""
        hashes, said = plan(read_hashes(text), wanted["accounts"], fits, make)
        new = "".join(f"{name}:{value}\n" for name, value in hashes.items())
        if new != text and not module.check_mode:
            write(path, new, wanted["group"])
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        module.fail_json(
            msg=f"{path} cannot be kept: {error}. Fix: see that apache2-utils (RHEL: httpd-tools) is whole and the disk has room"
        )
    module.exit_json(changed=new != text, said=said)


if __name__ == "__main__":
    main()
