#!/usr/bin/python
"""Let a running Redis change its password and lose no client: the Ansible module `redis_password`.

`take` has the stated password accepted beside the former one; `forget`, once every client has the new one, leaves that alone.
Passwords are read on the host from files that only root can read, and reach redis-cli by its environment and its input.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable

    Call = Callable[[str, str], str]

CALL_S = 15.0
REFUSED = ("NOAUTH", "WRONGPASS", "AUTH failed")


def settings_of(config: Path) -> dict[str, str]:
    """Return the settings of redis.conf and of what it includes, the last of each name."""
    found: dict[str, str] = {}
    for line in config.read_text(encoding="utf-8").splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "include":
            found.update(settings_of(Path(value.strip())))
        elif name:
            found[name] = value.strip()
    return found


def make_call(settings: dict[str, str]) -> Call:
    """Return how to give the local server a line of a command with a password; an empty answer is none."""
    # The file may state a port that the running server does not serve yet. It listens on this host: its certificate is not judged.
    tls_port, port = settings.get("tls-port", "0"), settings.get("port", "6379")
    ways = [["--tls", "--insecure", "-p", tls_port]] if tls_port != "0" else []
    ways += [["-p", port]] if port != "0" else []

    def call(password: str, line: str) -> str:
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "REDISCLI_AUTH": password}
        answer = ""
        for where in ways:
            command = ["redis-cli", "--no-auth-warning", "-h", "127.0.0.1", *where]
            try:
                done = subprocess.run(command, input=line, env=environment, capture_output=True, text=True, check=False, timeout=CALL_S)
            except (OSError, subprocess.TimeoutExpired):
                continue
            answer = f"{done.stdout}{done.stderr}".strip()
            if "Could not connect" not in answer:
                return answer
        return answer

    return call


def do(call: Call, password: str, line: str) -> None:
    """Have a command done.

    Raises:
        ValueError: Redis says that it was not; the command, which may hold a password, is not in the message.
    """
    answer = call(password, line)
    if answer != "OK":
        raise ValueError(f"{' '.join(line.split()[:2])} was answered by {answer[:200] or 'nothing'}")


def take(call: Call, password: str, former: str, applied: Path, *, check: bool) -> bool:
    """Have the password accepted beside the former one; return whether that changed anything.

    A server that takes neither is restarted by the role: what it noted at its start is removed.
    """
    answer = call(password, "PING")
    if answer == "PONG" or not any(word in answer for word in REFUSED):
        return False  # it has it already, or does not run, or loads its data and will be asked by the verification
    known = call(former, "PING") == "PONG" if former else False
    if check:
        return True
    if not known:
        applied.unlink(missing_ok=True)
        return True
    # In this order: a run that is killed in between finds the password refused still, and does both again.
    do(call, former, f"CONFIG SET masterauth {password}")
    do(call, former, f"ACL SETUSER default >{password}")
    return True


def forget(call: Call, password: str, known_s: float, *, check: bool) -> bool:
    """Leave one password, and end the connections of clients that are older than it; return whether there was another.

    Args:
        call: How to give the server a command.
        password: The one that stays.
        known_s: For how long clients could have it, s.
        check: Whether to look only.
    """
    hashes = set(re.findall(r"(?m)^[0-9a-f]{64}$", call(password, "ACL GETUSER default")))
    if hashes <= {hashlib.sha256(password.encode()).hexdigest()}:
        return False
    if not check:
        do(call, password, f"ACL SETUSER default resetpass >{password}")
        for line in call(password, "CLIENT LIST TYPE normal").splitlines():
            fields = dict(word.partition("=")[::2] for word in line.split())
            if float(fields.get("age", "0")) > known_s:
                call(password, f"CLIENT KILL ID {fields['id']}")
    return True


def main() -> None:
    """Read the arguments, and have the password taken or the former one forgotten."""
    paths = {name: {"type": "path", "required": True} for name in ("config", "client_env", "applied")}
    spec = {"do": {"type": "str", "required": True, "choices": ["take", "forget"]}, **paths}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    client_env, check = Path(module.params["client_env"]), module.check_mode
    try:
        settings = settings_of(Path(module.params["config"]))
        call, password = make_call(settings), settings["requirepass"]
        if module.params["do"] == "take":
            former = client_env.read_text(encoding="utf-8").strip().partition("=")[2] if client_env.exists() else ""
            changed = take(call, password, former, Path(module.params["applied"]), check=check)
        else:
            changed = forget(call, password, time.time() - client_env.stat().st_mtime, check=check)
    except (OSError, ValueError, KeyError) as error:
        # A look before the first apply, or after a loss, finds no file with a password yet: the run writes it before it comes here.
        if check and isinstance(error, (FileNotFoundError, KeyError)):
            module.exit_json(changed=False)
        module.fail_json(msg=f"Redis on this host does not change its password: {error}. Fix: see `journalctl -u redis-server -n 30`")
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
