#!/usr/bin/python
"""Change settings of a running Redis without a restart: the Ansible module `redis_settings`.

`apply` gives the server what the role has written into redis.conf where nothing else in it changed, `load_certificate` has it read new TLS
files, `close_plain` closes the port without TLS once nobody uses it. A server that does not take a setting is left to the role's restart.
The password is read on the host from files that only root and Redis can read, and goes to redis-cli through the environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Call = Callable[[Sequence[str]], str]

CALL_S = 15.0
# As in the module `redis_state`. The port without TLS comes last: until then it is how the server is reached.
LIVE = ("maxmemory", "tls-cert-file", "tls-key-file", "tls-ca-cert-file", "tls-auth-clients", "tls-replication", "tls-port", "port")
CERTIFICATE = ("tls-cert-file", "tls-key-file", "tls-ca-cert-file")
SHOWN_USERS = 8


def settings_of(config: Path) -> dict[str, str]:
    """Return the settings of redis.conf and of what it includes, the last of each name."""
    found: dict[str, str] = {}
    for line in config.read_text(encoding="utf-8").splitlines():
        name, _, value = line.strip().partition(" ")
        if name == "include":
            found.update(settings_of(Path(value.strip())))
        elif name and not name.startswith("#"):
            found[name] = value.strip()
    return found


def fixed_part(text: str) -> str:
    """Return a digest of the settings that a running server cannot take; as in the module `redis_state`."""
    lines = (line.strip() for line in text.splitlines())
    kept = sorted(line for line in lines if line and not line.startswith("#") and line.split()[0] not in (*LIVE, "include"))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def ways_to(tls_port: int, plain_port: int) -> list[list[str]]:
    """Return the options of redis-cli for each port that the local server may serve."""
    # It listens on this host: its certificate is not judged.
    tls = [["--tls", "--insecure", "-p", str(tls_port)]] if tls_port else []
    return tls + ([["-p", str(plain_port)]] if plain_port else [])


def make_call(ways: Sequence[Sequence[str]], password: str) -> Call:
    """Return how to give the local server a command by the first way that answers; an empty answer is none."""

    def call(words: Sequence[str]) -> str:
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "REDISCLI_AUTH": password}
        for where in ways:
            command = ["redis-cli", "--no-auth-warning", "-h", "127.0.0.1", *where, *words]
            try:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=CALL_S)
            except (OSError, subprocess.TimeoutExpired):
                continue
            answer = f"{done.stdout}{done.stderr}".strip()
            if answer and "Could not connect" not in answer:
                return answer
        return ""

    return call


def wanted_of(settings: dict[str, str]) -> list[str]:
    """Return names and values of the settings that CONFIG SET can change, in the order in which they are given."""
    stated = {"tls-port": "0", "port": "6379", **settings}
    return [word for name in LIVE if name in stated for word in (name, stated[name])]


def apply(call: Call, config: Path, former: str, *, check: bool) -> bool:
    """Give a running server the settings of redis.conf; return whether it has them all now.

    Args:
        call: How to give the server a command.
        config: redis.conf, as the role has written it.
        former: `fixed_part` of the redis.conf with which the server was started; empty = not known.
        check: Whether to look only.
    """
    if not former or fixed_part(config.read_text(encoding="utf-8")) != former or call(["PING"]) != "PONG":
        return False
    return check or call(["CONFIG", "SET", *wanted_of(settings_of(config))]) == "OK"


def sums(paths: Sequence[Path]) -> str:
    """Return what `sha256sum` prints of these files."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}\n" for path in paths)


def note(path: Path, text: str, like: os.stat_result | None = None) -> None:
    """Write a file whole or not at all, with owner and mode of a former one, else for root alone."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
        if like:
            os.fchown(handle, like.st_uid, like.st_gid)
            os.fchmod(handle, like.st_mode & 0o777)
    new.replace(path)


def noted_files(applied: Path) -> list[Path]:
    """Return the files whose sums the unit has noted."""
    return [Path(line.partition("  ")[2]) for line in applied.read_text(encoding="utf-8").splitlines() if "  " in line]


def load_certificate(call: Call, settings: dict[str, str], record: Path, *, check: bool) -> bool:
    """Have the server read its TLS files again where they changed since it last did; return whether they did.

    Raises:
        ValueError: The server refuses them.
    """
    paths = [Path(settings[name]) for name in CERTIFICATE]
    now = sums(paths)
    former = record.read_text(encoding="utf-8") if record.exists() else ""
    if now == former or call(["PING"]) != "PONG":
        return False
    if not check:
        answer = call(["CONFIG", "SET", *(word for name in CERTIFICATE for word in (name, settings[name]))])
        if answer != "OK":
            raise ValueError(f"CONFIG SET of its certificate was answered by {answer[:200] or 'nothing'}")
        note(record, now)
    # Without a record the server was started with these files.
    return former != ""


def users_of(listing: str) -> list[str]:
    """Return the addresses of clients in what `ss` prints of established connections to a port."""
    rows = [line.split() for line in listing.splitlines()]
    return sorted({re.sub(r":\d+$", "", row[-1]).strip("[]").removeprefix("::ffff:") for row in rows if len(row) >= 4})


def connections(port: str) -> str:
    """Return what the kernel knows of established connections to a port of this host.

    Raises:
        OSError: `ss` does not answer.
    """
    command = ["ss", "-Htn", "state", "established", f"( sport = :{port} )"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=CALL_S).stdout
    except subprocess.SubprocessError as error:
        raise OSError(f"`{' '.join(command)}` failed") from error


def close_plain(call: Call, plain_config: Path, applied: Path) -> None:
    """Close the port without TLS, now and for later starts."""
    # In this order: a run that is killed in between finds the port stated still, and does both again.
    answer = call(["CONFIG", "SET", "port", "0"])
    note(plain_config, "port 0\n", like=plain_config.stat())
    if answer != "OK":
        applied.unlink(missing_ok=True)  # Redis before 7.0: the role's next task restarts it


def main() -> None:
    """Read the arguments, and change what is asked for."""
    spec: dict[str, Any] = {
        "do": {"type": "str", "required": True, "choices": ["apply", "load_certificate", "close_plain"]},
        "config": {"type": "path", "required": True},
        "applied": {"type": "path", "required": True},
        "former": {"type": "str", "default": ""},
        "former_ports": {"type": "list", "elements": "int", "default": [0, 0]},
        "record": {"type": "path"},
        "plain_config": {"type": "path"},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    params, check = module.params, module.check_mode
    config, applied = Path(params["config"]), Path(params["applied"])
    try:
        settings = settings_of(config)
        ways = ways_to(*params["former_ports"]) + ways_to(int(settings.get("tls-port", "0")), int(settings.get("port", "6379")))
        call = make_call(ways, settings["requirepass"])
        if params["do"] == "apply":
            done = apply(call, config, params["former"], check=check)
            if done and not check:
                note(applied, sums(noted_files(applied)))
            module.exit_json(changed=done, live=done)
        if params["do"] == "load_certificate":
            module.exit_json(changed=load_certificate(call, settings, Path(params["record"]), check=check))
        port = settings.get("port", "6379")
        users = users_of(connections(port)) if port != "0" else []
        if port != "0" and not users and not check:
            close_plain(call, Path(params["plain_config"]), applied)
        module.exit_json(changed=port != "0" and not users, users=users[:SHOWN_USERS])
    except (OSError, ValueError, KeyError) as error:
        # A look before the first apply finds no files yet.
        if check and isinstance(error, (FileNotFoundError, KeyError)):
            module.exit_json(changed=False, users=[], live=False)
        module.fail_json(msg=f"Redis on this host does not take its settings: {error}. Fix: see `journalctl -u redis-server -n 30`")


if __name__ == "__main__":
    main()
