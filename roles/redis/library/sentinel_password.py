#!/usr/bin/python
"""Give a running sentinel a new password without a restart. No collection has a module for Sentinel.

The sentinels of a group authenticate to each other and are restarted one after the other. `accept` makes a sentinel accept the new
password in addition to the old one; `send` makes it use the new one. With both on all of them before the first restart, any two can
always agree on a new primary.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.redis_connection import AUTH_ERRORS, redis_cli, run_ok

if TYPE_CHECKING:
    from collections.abc import Callable

    # Sends one line with a command, authenticated with a password, and returns the answer.
    Call = Callable[[str, str], str]


def passwords_in_use(state: Path) -> tuple[str, str]:
    """Return the passwords that the sentinel sends to other sentinels and to Redis. It writes both into its state file."""
    text = state.read_text(encoding="utf-8") if state.exists() else ""
    found = (
        re.search(pattern, text) for pattern in (r"(?m)^sentinel sentinel-pass \"?(\S+?)\"?$", r"(?m)^sentinel auth-pass \S+ \"?(\S+?)\"?$")
    )
    sentinels, redis = (match.group(1) if match else "" for match in found)
    return sentinels, redis


def accept(call: Call, password: str, state: Path, account: str) -> bool:
    """Make the sentinel accept the password in addition to the old one, and return whether that changed something."""
    answer = call(password, "PING")
    if answer == "PONG" or not any(word in answer for word in AUTH_ERRORS):
        return False  # It accepts the password, or does not run; its start uses the new settings.
    old = passwords_in_use(state)[0]
    if call(old, "PING") != "PONG":
        return False  # The restart, which follows, is the only way.
    run_ok(call, old, f"ACL SETUSER {account} >{password}")
    return True


def send(call: Call, password: str, state: Path, name: str) -> bool:
    """Make the sentinel use the password for Redis and for other sentinels, and return whether that changed something."""
    if passwords_in_use(state) == (password, password) or call(password, "PING") != "PONG":
        return False
    run_ok(call, password, f"SENTINEL SET {name} auth-pass {password}")
    run_ok(call, password, f"SENTINEL CONFIG SET sentinel-pass {password}")
    return True


def main() -> None:
    """Accept or send the new password."""
    strings = ("name", "account", "ca_file", "address")
    module = AnsibleModule(
        argument_spec={
            "action": {"type": "str", "required": True, "choices": ["accept", "send"]},
            **{name: {"type": "str", "required": True} for name in strings},
            "port": {"type": "int", "required": True},
            "state": {"type": "path", "required": True},
            "env_file": {"type": "path", "required": True},
        },
    )
    params: dict[str, Any] = module.params
    tls = ["--tls", "--cacert", params["ca_file"]] if params["ca_file"] else []
    options = ["-h", params["address"], "-p", str(params["port"]), *tls, "--user", params["account"]]

    def call(password: str, line: str) -> str:
        answer: str = redis_cli([options], password, stdin=line)
        return answer

    state = Path(params["state"])
    try:
        password = Path(params["env_file"]).read_text(encoding="utf-8").strip().partition("=")[2]
        if params["action"] == "accept":
            changed = accept(call, password, state, params["account"])
        else:
            changed = send(call, password, state, params["name"])
    except (OSError, ValueError) as error:
        module.fail_json(
            msg=f"the password of the sentinel on this host cannot be changed: {error}. Fix: journalctl -u primus-redis-sentinel -n 30"
        )
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
