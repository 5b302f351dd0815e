"""The script that writes metrics of Redis for Prometheus, with a redis-cli that answers from files."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.unit.test_role_templates import render

if TYPE_CHECKING:
    from pathlib import Path

STATE = {"plain_port": 0, "tls_port": 0, "memory_mib": 8192, "keys": 0, "answers": True, "follows": "", "files": "none"}
ADDRESSES = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"]
CLIENT = """#!/bin/sh
case $* in
    *' INFO') echo asked >> "$STUB/asked"; cat "$STUB/info" 2> /dev/null ;;
    *' CONFIG GET min-replicas-to-write') echo asked >> "$STUB/asked"; printf 'min-replicas-to-write\\r\\n2\\r\\n' ;;
    *' SENTINEL CKQUORUM primary') echo 'OK 5 usable Sentinels' ;;
esac
"""


def metrics_of(folder: Path, info: str) -> tuple[dict[str, str], int]:
    """Run the script on a host of a group of five; return the metrics and how many questions Redis was asked."""
    text = render(
        "redis",
        "metrics.sh.j2",
        __redis_state={"state": STATE},
        redis_group_addresses=ADDRESSES,
        redis_group_hosts=["n1", "n2", "n3", "n4", "n5"],
        _redis_metrics_file=str(folder / "redis.prom"),
        ansible_host=ADDRESSES[0],
        inventory_hostname="n1",
    )
    (folder / "redis-cli").write_text(CLIENT, encoding="utf-8")
    (folder / "redis-cli").chmod(0o755)
    if info:
        (folder / "info").write_text(info, encoding="utf-8")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "STUB": str(folder)}
    done = subprocess.run(["/bin/sh", "-s"], input=text, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    lines = [line for line in (folder / "redis.prom").read_text("utf-8").splitlines() if not line.startswith("#")]
    return dict(line.split(" ", 1) for line in lines), len((folder / "asked").read_text("utf-8").splitlines())


def test_number_of_replicas_that_writes_need_is_that_of_redis(tmp_path: Path) -> None:
    """The alert on missing replicas compares both numbers."""
    found, _ = metrics_of(tmp_path, "role:master\r\nused_memory:100\r\nmaxmemory:1000\r\nmin_slaves_good_slaves:1\r\n")

    assert (found["primus_redis_good_replicas"], found["primus_redis_min_replicas"]) == ("1", "2")
    assert found["primus_redis_primary"] == found["primus_redis_quorum"] == found["primus_redis_up"] == "1"


def test_silent_redis_is_asked_once(tmp_path: Path) -> None:
    """Each question waits up to 15 s, and systemd ends the unit after 30 s."""
    found, asked = metrics_of(tmp_path, "")

    assert found == {"primus_redis_up": "0", "primus_redis_quorum": "1"}
    assert asked == 1
