#!/usr/bin/python
"""Read the state of this host's Redis before a change: its data, its primary and its replication position.

community.general.redis_info needs a Python library on the host. This module needs redis-cli, and works without Redis too. It uses the
settings that are on the host, not the inventory's, so it also reaches a Redis on an old port or with an old password.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command
from ansible.module_utils.redis_connection import CALL_S, local_options, read_settings, redis_cli, restart_digest

# Redis' defaults for settings that redis.conf does not have.
DEFAULTS = {"port": "6379", "tls-port": "0", "requirepass": "", "replicaof": ""}
MEMINFO = Path("/proc/meminfo")


def is_current(applied: Path) -> bool:
    """Return whether the server was started with the files that are there now; its unit recorded their checksums."""
    try:
        return run_command(["sha256sum", "--status", "--check", str(applied)], timeout_s=CALL_S).code == 0
    except OSError:
        return False


def data_files(folder: Path) -> str:
    """Return what the data folder contains: `aof`, which a start loads; only `rdb`, which it would ignore; or `none`."""
    parts = folder / "appendonlydir"
    if (folder / "appendonly.aof").exists() or (parts.is_dir() and any(parts.iterdir())):
        return "aof"
    return "rdb" if (folder / "dump.rdb").exists() else "none"


def parse_info(info: str) -> dict[str, Any]:
    """Return the facts in the output of INFO. `answers` is false if it is incomplete; `keys` is None while the server loads its data."""
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
        # The replication id that a promoted replica shared with its primary, and the first offset that it did not share.
        "former_history": lines.get("master_replid2", ""),
        "former_offset": int(lines.get("second_repl_offset", "-1")),
    }


def memory_mib(meminfo: Path) -> int:
    """Return the host's memory in MiB."""
    match = re.search(r"(?m)^MemTotal:\s+(\d+) kB$", meminfo.read_text("utf-8", "replace"))
    if match is None:
        raise ValueError(f"{meminfo} has no line MemTotal")
    return int(match.group(1)) >> 10


def read_state(config: Path, data: Path, applied: Path, meminfo: Path = MEMINFO) -> dict[str, Any]:
    """Return the state of this host's Redis."""
    host = {"files": data_files(data), "memory_mib": memory_mib(meminfo)}
    try:
        settings = {**DEFAULTS, **read_settings(config)}
        digest = restart_digest(config)
    except FileNotFoundError:
        return {"answers": False, "follows": "", "plain_port": 0, "tls_port": 0, "restart_digest": "", **host}
    ports = {"plain_port": int(settings["port"]), "tls_port": int(settings["tls-port"])}
    # A run that was killed may have written a port that the running server does not serve yet.
    options = local_options(ports["tls_port"], ports["plain_port"])
    sections = [
        redis_cli(options, settings["requirepass"], ["INFO", section]) for section in ("replication", "keyspace", "persistence", "memory")
    ]
    return {
        "follows": settings["replicaof"].partition(" ")[0],
        # The package's redis.conf has no password; the cluster does not use its port.
        **(ports if settings["requirepass"] else {"plain_port": 0, "tls_port": 0}),
        "restart_digest": digest if is_current(applied) else "",
        **parse_info("\n".join(sections)),
        **host,
    }


def main() -> None:
    """Read the state."""
    spec = {name: {"type": "path", "required": True} for name in ("config", "data_dir", "applied")}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    try:
        state = read_state(Path(module.params["config"]), Path(module.params["data_dir"]), Path(module.params["applied"]))
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"the state of Redis on this host cannot be read: {error}. Fix: see `redis-cli INFO` and /etc/redis")
    module.exit_json(changed=False, state=state)


if __name__ == "__main__":
    main()
