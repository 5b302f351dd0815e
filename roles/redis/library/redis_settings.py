#!/usr/bin/python
"""Change settings of a running Redis without a restart. community.general.redis needs a Python library on the host, and sets one setting.

`apply` sets what the role has written into redis.conf, if nothing else in it changed. `load_certificate` loads new TLS files.
`close_plain` closes the port without TLS once nobody uses it. If the server rejects a setting, the role restarts it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.atomic_files import write_atomic, write_owned
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.redis_connection import LIVE_SETTINGS, local_options, plain_clients, read_settings, redis_cli, restart_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Sends one command to the server and returns the answer.
    Call = Callable[[Sequence[str]], str]

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


def main() -> None:
    """Run the action."""
    spec: dict[str, Any] = {
        "action": {"type": "str", "required": True, "choices": ["apply", "load_certificate", "close_plain"]},
        "config": {"type": "path", "required": True},
        "applied": {"type": "path", "required": True},
        "previous_digest": {"type": "str", "default": ""},
        "previous_ports": {"type": "list", "elements": "int", "default": [0, 0]},
        "record": {"type": "path"},
        "plain_config": {"type": "path"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    params, check = module.params, module.check_mode
    config, applied = Path(params["config"]), Path(params["applied"])
    try:
        settings = read_settings(config)
        password, port = settings["requirepass"], settings.get("port", "6379")
        options = local_options(*params["previous_ports"]) + local_options(int(settings.get("tls-port", "0")), int(port))

        def call(arguments: Sequence[str]) -> str:
            return redis_cli(options, password, arguments)

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
