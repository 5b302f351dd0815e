# ruff: noqa: INP001 (Ansible loads it by path)
"""Read redis.conf and send commands to the Redis server of this host with redis-cli.

Passwords are read on the host and passed to redis-cli in its environment, never as an argument.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

from ansible.module_utils.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CALL_S = 15.0
# Answers of Redis to a missing or wrong password.
AUTH_ERRORS = ("NOAUTH", "WRONGPASS", "AUTH failed")
# Settings that CONFIG SET changes in a running server from Redis 7.0 on, in the order in which they are set. The port without TLS comes
# last, because the server may be reached through it until then.
LIVE_SETTINGS = (
    "maxmemory",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "tls-cert-file",
    "tls-key-file",
    "tls-ca-cert-file",
    "tls-auth-clients",
    "tls-replication",
    "tls-port",
    "port",
)


def read_settings(config: Path) -> dict[str, str]:
    """Return the settings of redis.conf and its includes. The last of each name wins, and a missing include is ignored.

    Raises:
        FileNotFoundError: There is no redis.conf.
    """
    found: dict[str, str] = {}
    for line in config.read_text("utf-8", "replace").splitlines():
        name, _, value = line.strip().partition(" ")
        value = value.strip().strip("\"'")
        if name == "include":
            included = config.parent / value
            found.update(read_settings(included) if included.exists() else {})
        elif name and not name.startswith("#"):
            found[name] = value
    return found


def restart_digest(config: Path) -> str:
    """Return a digest of the settings in redis.conf, without its includes, that need a restart to change."""
    lines = (line.strip() for line in config.read_text("utf-8", "replace").splitlines())
    kept = sorted(line for line in lines if line and not line.startswith("#") and line.split()[0] not in (*LIVE_SETTINGS, "include"))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def local_options(tls_port: int, plain_port: int) -> list[list[str]]:
    """Return the options of redis-cli for each port that the local server may serve; 0 = it does not.

    The certificate is not verified, because the server is on this host.
    """
    tls = [["--tls", "--insecure", "-p", str(tls_port)]] if tls_port else []
    return tls + ([["-p", str(plain_port)]] if plain_port else [])


def redis_cli(options: Sequence[Sequence[str]], password: str, arguments: Sequence[str] = (), stdin: str = "") -> str:
    """Run redis-cli against the local server and return what it printed; empty = no answer.

    Args:
        options: Options for each port, as `local_options` returns them. The first port that answers is used.
        password: Sent in the environment; empty = none.
        arguments: The command.
        stdin: A line with a command, for commands that contain a password.
    """
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **({"REDISCLI_AUTH": password} if password else {})}
    output = ""
    for port_options in options:
        command = ["redis-cli", "--no-auth-warning", "-h", "127.0.0.1", *port_options, *arguments]
        try:
            done = run_command(command, stdin=stdin, env=environment, timeout_s=CALL_S)
        except OSError:
            continue
        output = f"{done.stdout}{done.stderr}".strip()
        if done.stdout.strip() and "Could not connect" not in output:
            return output
    return "" if "Could not connect" in output else output


def run_ok(call: Callable[[str, str], str], password: str, line: str) -> None:
    """Run a command that answers OK.

    Args:
        call: Sends one line with a command, authenticated with a password, and returns the answer.
        password: The password.
        line: The command. It may contain a password, so the error has only its first two words.

    Raises:
        ValueError: The answer is another one.
    """
    answer = call(password, line)
    if answer != "OK":
        raise ValueError(f"{' '.join(line.split()[:2])} was answered by {answer[:200] or 'nothing'}")


def plain_clients(port: str) -> list[str]:
    """Return the addresses that are connected to a port of this host.

    Raises:
        OSError: `ss` fails.
    """
    command = ["ss", "-Htn", "state", "established", f"( sport = :{port} )"]
    done = run_command(command, timeout_s=CALL_S)
    if done.code:
        raise OSError(f"`{' '.join(command)}` failed: {done.last_words()}")
    return clients_in(done.stdout)


def clients_in(listing: str) -> list[str]:
    """Return the addresses of clients from what `ss` prints for established connections to a port."""
    rows = [line.split() for line in listing.splitlines()]
    return sorted({re.sub(r":\d+$", "", row[-1]).strip("[]").removeprefix("::ffff:") for row in rows if len(row) >= 4})
