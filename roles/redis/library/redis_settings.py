#!/usr/bin/python
"""Change settings and the password of a running Redis without closing connections.

community.general.redis needs a Python library on the host, and sets one setting.

`apply` sets what the role has written into redis.conf, if nothing else in it changed. `load_certificate` loads new TLS files.
`close_plain` closes the port without TLS once nobody uses it. If the server rejects a setting, the role restarts it.

`add_password` makes Redis accept the new password in addition to the old one. `remove_old_password`, once every client has the new one,
removes the old one.
"""

from __future__ import annotations

import hashlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.atomic_files import write_atomic, write_owned
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.redis_connection import (
    AUTH_ERRORS,
    LIVE_SETTINGS,
    local_options,
    plain_clients,
    read_settings,
    redis_cli,
    restart_digest,
    run_ok,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Sends one command to the server and returns the answer.
    Call = Callable[[Sequence[str]], str]
    # Sends one line with a command, authenticated with a password, and returns the answer.
    Send = Callable[[str, str], str]

CERTIFICATE = ("tls-cert-file", "tls-key-file", "tls-ca-cert-file")
MAX_CLIENTS_SHOWN = 8


def live_settings(settings: dict[str, str]) -> list[str]:
    """Return names and values of the settings that CONFIG SET can change, in the order of LIVE_SETTINGS."""
    configured = {"tls-port": "0", "port": "6379", **settings}
    return [word for name in LIVE_SETTINGS if name in configured for word in (name, configured[name])]


def apply(call: Call, config: Path, previous_digest: str, *, check: bool) -> bool:
    """Set the settings of redis.conf in a running server; return whether it has all of them now.

    Args:
        call: Sends a command to the server.
        config: redis.conf, as the role has written it.
        previous_digest: `restart_digest` of the redis.conf with which the server was started; empty = unknown.
        check: Change nothing.
    """
    if not previous_digest or restart_digest(config) != previous_digest or call(["PING"]) != "PONG":
        return False
    return check or call(["CONFIG", "SET", *live_settings(read_settings(config))]) == "OK"


def checksums(paths: Sequence[Path]) -> str:
    """Return what `sha256sum` prints for these files."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}\n" for path in paths)


def recorded_files(applied: Path) -> list[Path]:
    """Return the files whose checksums the unit has recorded."""
    return [Path(line.partition("  ")[2]) for line in applied.read_text(encoding="utf-8").splitlines() if "  " in line]


def load_certificate(call: Call, settings: dict[str, str], record: Path, *, check: bool) -> bool:
    """Make the server load its TLS files if they changed since it last did; return whether they changed.

    Raises:
        ValueError: The server rejects them.
    """
    paths = [Path(settings[name]) for name in CERTIFICATE]
    now = checksums(paths)
    previous = record.read_text(encoding="utf-8") if record.exists() else ""
    if now == previous or call(["PING"]) != "PONG":
        return False
    if not check:
        answer = call(["CONFIG", "SET", *(word for name in CERTIFICATE for word in (name, settings[name]))])
        if answer != "OK":
            raise ValueError(f"CONFIG SET of its certificate was answered by {answer[:200] or 'nothing'}")
        write_atomic(record, now, mode=0o600)
    # Without a record, the server was started with these files.
    return previous != ""


def close_plain(call: Call, plain_config: Path, applied: Path) -> None:
    """Close the port without TLS, now and for later starts."""
    # In this order, because a run that is killed in between finds the port still configured, and repeats both.
    answer = call(["CONFIG", "SET", "port", "0"])
    found = plain_config.stat()
    write_owned(plain_config, "port 0\n", mode=found.st_mode & 0o777, owner=(found.st_uid, found.st_gid))
    if answer != "OK":
        applied.unlink(missing_ok=True)  # Redis before 7.0: the next task of the role restarts it


def add_password(send: Send, password: str, old: str, applied: Path, *, check: bool) -> bool:
    """Make Redis accept the password in addition to the old one, and return whether that changed something.

    If the server accepts neither, its start record is removed, and the role restarts it.
    """
    answer = send(password, "PING")
    if answer == "PONG" or not any(word in answer for word in AUTH_ERRORS):
        return False  # It accepts the password, is stopped, or loads its data; the verification checks it later.
    old_is_valid = send(old, "PING") == "PONG" if old else False
    if check:
        return True
    if not old_is_valid:
        applied.unlink(missing_ok=True)
        return True
    # In this order, because a run that is killed in between finds the password still rejected, and repeats both.
    run_ok(send, old, f"CONFIG SET masterauth {password}")
    run_ok(send, old, f"ACL SETUSER default >{password}")
    return True


def remove_old_password(send: Send, password: str, age_s: float, *, check: bool) -> bool:
    """Remove every other password, and close the connections of clients that are older than this one.

    Args:
        send: Sends a command to the server.
        password: The password that stays.
        age_s: Time since the password was written on this host, in seconds.
        check: Change nothing.

    Returns:
        Whether there was another password.
    """
    hashes = set(re.findall(r"(?m)^[0-9a-f]{64}$", send(password, "ACL GETUSER default")))
    if hashes <= {hashlib.sha256(password.encode()).hexdigest()}:
        return False
    if not check:
        run_ok(send, password, f"ACL SETUSER default resetpass >{password}")
        for line in send(password, "CLIENT LIST TYPE normal").splitlines():
            fields = dict(word.partition("=")[::2] for word in line.split())
            if float(fields.get("age", "0")) > age_s:
                send(password, f"CLIENT KILL ID {fields['id']}")
    return True


def change_password(params: dict[str, Any], send: Send, password: str, *, check: bool) -> bool:
    """Add the password of redis.conf or remove the old one; return whether that changed something."""
    client_env = Path(params["client_env"])
    if params["action"] == "remove_old_password":
        return remove_old_password(send, password, time.time() - client_env.stat().st_mtime, check=check)
    old = client_env.read_text(encoding="utf-8").strip().partition("=")[2] if client_env.exists() else ""
    return add_password(send, password, old, Path(params["applied"]), check=check)


def main() -> None:
    """Run the action."""
    actions = ["apply", "load_certificate", "close_plain", "add_password", "remove_old_password"]
    spec: dict[str, Any] = {
        "action": {"type": "str", "required": True, "choices": actions},
        "config": {"type": "path", "required": True},
        "applied": {"type": "path", "required": True},
        "previous_digest": {"type": "str", "default": ""},
        "previous_ports": {"type": "list", "elements": "int", "default": [0, 0]},
        "record": {"type": "path"},
        "plain_config": {"type": "path"},
        "client_env": {"type": "path"},  # with the password of local clients: the old one until the role writes the file
    }
    needs = [("action", action, ["client_env"]) for action in actions if action.endswith("_password")]
    module = AnsibleModule(argument_spec=spec, required_if=needs, supports_check_mode=True)
    params, check = module.params, module.check_mode
    config, applied = Path(params["config"]), Path(params["applied"])
    try:
        settings = read_settings(config)
        password, port = settings["requirepass"], settings.get("port", "6379")
        # redis.conf may already have a port that the running server does not serve yet.
        options = local_options(*params["previous_ports"]) + local_options(int(settings.get("tls-port", "0")), int(port))

        def call(arguments: Sequence[str]) -> str:
            return redis_cli(options, password, arguments)

        if params["action"].endswith("_password"):
            changed = change_password(params, lambda secret, line: redis_cli(options, secret, stdin=line), password, check=check)
            module.exit_json(changed=changed)
        if params["action"] == "apply":
            done = apply(call, config, params["previous_digest"], check=check)
            if done and not check:
                write_atomic(applied, checksums(recorded_files(applied)), mode=0o600)
            module.exit_json(changed=done, live=done)
        if params["action"] == "load_certificate":
            module.exit_json(changed=load_certificate(call, settings, Path(params["record"]), check=check))
        clients = plain_clients(port) if port != "0" else []
        if port != "0" and not clients and not check:
            close_plain(call, Path(params["plain_config"]), applied)
        module.exit_json(changed=port != "0" and not clients, users=clients[:MAX_CLIENTS_SHOWN])
    except (OSError, ValueError, KeyError) as error:
        # In check mode before the first apply there are no files yet.
        if check and isinstance(error, (FileNotFoundError, KeyError)):
            module.exit_json(changed=False, users=[], live=False)
        module.fail_json(msg=f"settings of Redis on this host cannot be changed: {error}. Fix: see `journalctl -u redis-server -n 30`")


if __name__ == "__main__":
    main()
