#!/usr/bin/python
"""Change the password of a running Redis without closing client connections. No collection's module does this.

`add` makes Redis accept the new password in addition to the old one. `remove_old`, once every client has the new password, removes the
old one.
"""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.redis_connection import AUTH_ERRORS, local_options, read_settings, redis_cli, run_ok

if TYPE_CHECKING:
    from collections.abc import Callable

    # Sends one line with a command, authenticated with a password, and returns the answer.
    Call = Callable[[str, str], str]


def add(call: Call, password: str, old: str, applied: Path, *, check: bool) -> bool:
    """Make Redis accept the password in addition to the old one, and return whether that changed something.

    If the server accepts neither, its start record is removed, and the role restarts it.
    """
    answer = call(password, "PING")
    if answer == "PONG" or not any(word in answer for word in AUTH_ERRORS):
        return False  # It accepts the password, is stopped, or loads its data; the verification checks it later.
    old_is_valid = call(old, "PING") == "PONG" if old else False
    if check:
        return True
    if not old_is_valid:
        applied.unlink(missing_ok=True)
        return True
    # In this order, because a run that is killed in between finds the password still rejected, and repeats both.
    run_ok(call, old, f"CONFIG SET masterauth {password}")
    run_ok(call, old, f"ACL SETUSER default >{password}")
    return True


def remove_old(call: Call, password: str, age_s: float, *, check: bool) -> bool:
    """Remove every other password, and close the connections of clients that are older than this one.

    Args:
        call: Sends a command to the server.
        password: The password that stays.
        age_s: Time since the password was written on this host, in seconds.
        check: Change nothing.

    Returns:
        Whether there was another password.
    """
    hashes = set(re.findall(r"(?m)^[0-9a-f]{64}$", call(password, "ACL GETUSER default")))
    if hashes <= {hashlib.sha256(password.encode()).hexdigest()}:
        return False
    if not check:
        run_ok(call, password, f"ACL SETUSER default resetpass >{password}")
        for line in call(password, "CLIENT LIST TYPE normal").splitlines():
            fields = dict(word.partition("=")[::2] for word in line.split())
            if float(fields.get("age", "0")) > age_s:
                call(password, f"CLIENT KILL ID {fields['id']}")
    return True


def main() -> None:
    """Add the new password or remove the old one."""
    paths = {name: {"type": "path", "required": True} for name in ("config", "client_env", "applied")}
    spec = {"action": {"type": "str", "required": True, "choices": ["add", "remove_old"]}, **paths}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    client_env, check = Path(module.params["client_env"]), module.check_mode
    try:
        settings = read_settings(Path(module.params["config"]))
        # redis.conf may already have a port that the running server does not serve yet.
        options = local_options(int(settings.get("tls-port", "0")), int(settings.get("port", "6379")))
        password = settings["requirepass"]

        def call(password: str, line: str) -> str:
            return redis_cli(options, password, stdin=line)

        if module.params["action"] == "add":
            old = client_env.read_text(encoding="utf-8").strip().partition("=")[2] if client_env.exists() else ""
            changed = add(call, password, old, Path(module.params["applied"]), check=check)
        else:
            changed = remove_old(call, password, time.time() - client_env.stat().st_mtime, check=check)
    except (OSError, ValueError, KeyError) as error:
        # In check mode before the first apply, or after the files were lost, there is no password file yet. A real run writes it first.
        if check and isinstance(error, (FileNotFoundError, KeyError)):
            module.exit_json(changed=False)
        module.fail_json(msg=f"the password of Redis on this host cannot be changed: {error}. Fix: see `journalctl -u redis-server -n 30`")
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
