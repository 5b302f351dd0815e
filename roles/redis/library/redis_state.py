#!/usr/bin/python
"""Tell what a host's Redis is before anything is changed: what it holds, whom it follows, how far it got. The Ansible module `redis_state`.

It reads the settings that are there now, not the inventory's, so it finds a Redis on its former port and with its former password as well.
"""

from __future__ import annotations

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


def read_settings(text: str) -> dict[str, str]:
    """Return the settings of redis.conf that say how to reach the server, and whom it follows."""
    found = dict(DEFAULTS)
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name in found:
            found[name] = value.strip().strip("\"'")
    return found


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
    tls = settings["tls-port"] != "0"
    # It listens on this host, and nothing is sent but a question that its settings' own password allows: its certificate is not judged.
    where = ["--tls", "--insecure", "-p", settings["tls-port"]] if tls else ["-p", settings["port"]]
    secret = {"REDISCLI_AUTH": settings["requirepass"]} if settings["requirepass"] else {}

    def call(section: str) -> str:
        environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **secret}
        command = ["redis-cli", "--no-auth-warning", "-h", "127.0.0.1", *where, "INFO", section]
        try:
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=CALL_S).stdout
        except (OSError, subprocess.TimeoutExpired):
            return ""

    return call


def look(config: Path, data: Path) -> dict[str, Any]:
    """Return the state of this host's Redis; without redis.conf there is none."""
    try:
        settings = read_settings(read_config(config))
    except FileNotFoundError:
        return {"answers": False, "follows": "", "files": files_in(data)}
    call = make_call(settings)
    sections = [call(section) for section in ("replication", "keyspace", "persistence")]
    stated = settings["replicaof"].partition(" ")[0]
    return {"follows": stated, **facts_in("".join(sections)), "files": files_in(data)}


def main() -> None:
    """Read the arguments and look."""
    spec = {"config": {"type": "path", "required": True}, "data_dir": {"type": "path", "required": True}}
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    try:
        state = look(Path(module.params["config"]), Path(module.params["data_dir"]))
    except (OSError, ValueError) as error:
        module.fail_json(msg=f"what Redis holds on this host cannot be read: {error}. Fix: see `redis-cli INFO` and its folders")
    module.exit_json(changed=False, state=state)


if __name__ == "__main__":
    main()
