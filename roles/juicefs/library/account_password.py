#!/usr/bin/python
"""Set the password of an account if it differs: the Ansible module `account_password`.

The host's own libcrypt compares and its chpasswd sets, so neither the controller nor the host's Python needs a library for it. The
password is passed to chpasswd through its standard input.
"""

from __future__ import annotations

import ctypes
import hmac
import subprocess
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

# Debian and Ubuntu, RHEL; the function and its arguments are the same (crypt(3)).
_LIBRARIES = ("libcrypt.so.1", "libcrypt.so.2")


def load_crypt() -> ctypes.CDLL:
    """Return the host's libcrypt.

    Raises:
        OSError: There is none.
    """
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.crypt.restype = ctypes.c_char_p
        library.crypt.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        return library
    raise OSError(f"none of {', '.join(_LIBRARIES)} is on this host. Fix: install the distribution's libcrypt")


def stored_hash(account: str, shadow: str) -> str:
    """Return the hash of an account in the text of /etc/shadow; empty if it has no password or is locked."""
    rows = (line.split(":") for line in shadow.splitlines())
    found = next((row[1] for row in rows if row[0] == account and len(row) > 1), "")
    return found if found.startswith("$") else ""


def matches(password: str, stored: str) -> bool:
    """Return whether a stored hash matches a password."""
    if not stored:
        return False
    again = load_crypt().crypt(password.encode(), stored.encode())
    return bool(again) and hmac.compare_digest(again, stored.encode())


def main() -> None:
    """Set the password if it differs."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "password": {"type": "str", "required": True, "no_log": True},
        },
        supports_check_mode=True,
    )
    name, password = module.params["name"], module.params["password"]
    try:
        same = matches(password, stored_hash(name, Path("/etc/shadow").read_text(encoding="utf-8")))
        if not same and not module.check_mode:
            subprocess.run(["chpasswd"], input=f"{name}:{password}\n", text=True, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        module.fail_json(msg=f"the password of {name} cannot be set: {error}")
    module.exit_json(changed=not same)


if __name__ == "__main__":
    main()
