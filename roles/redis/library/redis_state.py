#!/usr/bin/python
"""Tell what a host's Redis is before anything is changed: what it holds, whom it follows, how far it got. The Ansible module `redis_state`.

It reads the settings that are there now, not the inventory's, so it finds a Redis on its former port and with its former password as well.
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
    from collections.abc import Callable

CALL_S = 15.0
# Redis' own defaults, where redis.conf says nothing.
DEFAULTS = {"port": "6379", "tls-port": "0", "requirepass": "", "replicaof": ""}
# Settings that CONFIG SET changes in a running server from Redis 7.0 on; the module `redis_settings` has the same list.
LIVE = ("maxmemory", "tls-cert-file", "tls-key-file", "tls-ca-cert-file", "tls-auth-clients", "tls-replication", "tls-port", "port")
MEMINFO = Path("/proc/meminfo")


def read_settings(text: str) -> dict[str, str]:
    """Return the settings of redis.conf that say how to reach the server, and whom it follows."""
    found = dict(DEFAULTS)
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name in found:
            found[name] = value.strip().strip("\"'")
    return found


def fixed_part(text: str) -> str:
    """Return a digest of the settings in redis.conf that a running server cannot take without a restart.

    The module `redis_settings` compares it with that of the file that the role has written.
    """
    lines = (line.strip() for line in text.splitlines())
    kept = sorted(line for line in lines if line and not line.startswith("#") and line.split()[0] not in (*LIVE, "include"))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()


def is_applied(applied: Path) -> bool:
    """Return whether the running server was started with the files that are there now; its unit notes their sums."""
    try:
        done = subprocess.run(["sha256sum", "--status", "--check", str(applied)], capture_output=True, check=False, timeout=CALL_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def read_config(config: Path) -> str:
    """Return the text of redis.conf with that of the files that it includes.

    Raises:
        FileNotFoundError: There is no redis.conf.
    """
    lines = config.read_text("utf-8", "replace").splitlines()
    included = [Path(line.split(None, 1)[1].strip()) for line in lines if line.startswith("include ")]
    return "\n".join([*lines, *(path.read_text("utf-8", "replace") for path in included if path.exists())])


def files_in(folder: Path) -> str:
    """Return what the data folder holds: `aof` (what a start reads), `rdb` (not read by a start with an append-only file), or `none`."""
    parts = folder / "appendonlydir"
    if (folder / "appendonly.aof").exists() or (parts.is_dir() and any(parts.iterdir())):
        return "aof"
    return "rdb" if (folder / "dump.rdb").exists() else "none"


def facts_in(info: str) -> dict[str, Any]:
    """Return what INFO says, or that there was no answer; `keys` is None while the server is still loading them."""
    lines = {name: value.strip() for name, colon, value in (line.partition(":") for line in info.splitlines()) if colon}
    if "role" not in lines or "loading" not in lines:
        return {"answers": False}
    databases = [re.match(r"keys=(\d+)", value) for name, value in lines.items() if re.fullmatch(r"db\d+", name)]
    replica = lines["role"] == "slave"
    return {
        "answers": True,
        "used_mib": int(lines.get("used_memory", "0")) >> 20,
        "keys": sum(int(match.group(1)) for match in databases if match) if lines["loading"] == "0" else None,
        "role": "replica" if replica else "primary",
        "follows": lines.get("master_host", ""),
        "history": lines.get("master_replid", ""),
        "offset": int(lines.get("master_repl_offset", "0")),
        # What a promoted replica had in common with its former primary; the offset is the first that is no longer shared.
        "former_history": lines.get("master_replid2", ""),
        "former_offset": int(lines.get("second_repl_offset", "-1")),
    }


def make_call(settings: dict[str, str]) -> Callable[[str], str]:
    """Return how to ask the local server with its own settings; the password goes through the environment."""
    # A run that was killed may have written a port that the running server does not serve yet. It listens on this host, and nothing is
    # sent but a question that its settings' own password allows: its certificate is not judged.
    ways = [["--tls", "--insecure", "-p", settings["tls-port"]]] if settings["tls-port"] != "0" else []
    ways += [["-p", settings["port"]]] if settings["port"] != "0" else []
    secret = {"REDISCLI_AUTH": settings["requirepass"]} if settings["requirepass"] else {}

    def call(section: str) -> str:
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **secret}
        for where in ways:
            command = ["redis-cli", "--no-auth-warning", "-h", "127.0.0.1", *where, "INFO", section]
            try:
                said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=CALL_S).stdout
            except (OSError, subprocess.TimeoutExpired):
                continue
            if said:
                return said
        return ""

    return call


def memory_mib(meminfo: Path) -> int:
    """Return the host's memory in MiB."""
    match = re.search(r"(?m)^MemTotal:\s+(\d+) kB$", meminfo.read_text("utf-8", "replace"))
    if match is None:
        raise ValueError(f"{meminfo} has no line MemTotal")
    return int(match.group(1)) >> 10


def look(config: Path, data: Path, applied: Path, meminfo: Path = MEMINFO) -> dict[str, Any]:
    """Return the state of this host's Redis; without redis.conf there is none."""
    host = {"files": files_in(data), "memory_mib": memory_mib(meminfo)}
    try:
        settings = read_settings(read_config(config))
        fixed = fixed_part(config.read_text("utf-8", "replace"))
    except FileNotFoundError:
        return {"answers": False, "follows": "", "plain_port": 0, "tls_port": 0, "fixed": "", **host}
    call = make_call(settings)
    sections = [call(section) for section in ("replication", "keyspace", "persistence", "memory")]
    stated = settings["replicaof"].partition(" ")[0]
    # The package's own redis.conf has no password: nothing of the cluster uses its port.
    ports = {"plain_port": int(settings["port"]), "tls_port": int(settings["tls-port"])} if settings["requirepass"] else {}
    start = {"fixed": fixed if is_applied(applied) else ""}
    return {"follows": stated, "plain_port": 0, "tls_port": 0, **ports, **start, **facts_in("".join(sections)), **host}


def main() -> None:
    """Read the arguments and look."""
    spec = {name: {"type": "path", "required": True} for name in ("config", "data_dir", "applied")}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    try:
        state = look(Path(module.params["config"]), Path(module.params["data_dir"]), Path(module.params["applied"]))
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"what Redis holds on this host cannot be read: {error}. Fix: see `redis-cli INFO` and its folders")
    module.exit_json(changed=False, state=state)


if __name__ == "__main__":
    main()
