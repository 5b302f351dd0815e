#!/usr/bin/env python3
"""Write metrics of the object store for node_exporter.

    object_store_metrics.py FILE MASTER_METRICS_PORT S3_PORT DATA_FOLDER...

The port is 0 on hosts without a master. Only the leader of the masters knows which volumes lack a copy.
"""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import ssl
import sys
from pathlib import Path

CALL_S = 10.0
LEADER = re.compile(r"(?m)^SeaweedFS_master_is_leader (\S+)")
MISMATCH = re.compile(r"(?m)^SeaweedFS_master_replica_placement_mismatch\{[^}]*\} (\S+)")
HELP = {
    "primus_object_store_up": "Whether the S3 gateway of this host accepts TLS connections.",
    "primus_object_store_volumes_without_copy": "Volumes with a missing or misplaced copy, as the leader of the masters sees them.",
    "primus_object_store_free_bytes": "Free space of the disk of a data folder.",
    "primus_object_store_size_bytes": "Size of the disk of a data folder.",
}


def is_up(port: int) -> bool:
    """Return whether the gateway accepts a TLS connection. The certificate is checked by the verification."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=CALL_S) as raw, context.wrap_socket(raw):
            return True
    except OSError:
        return False


def master_metrics(port: int) -> str:
    """Return the metrics of the master of this host; empty if there is none."""
    if not port:
        return ""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def volumes_without_copy(text: str) -> int | None:
    """Return the number of such volumes, or None if this master is not the leader."""
    leader = LEADER.search(text)
    if not leader or float(leader[1]) != 1:
        return None
    return sum(float(value) > 0 for value in MISMATCH.findall(text))


def render(*, up: bool, missing: int | None, disks: dict[str, tuple[int, int]]) -> str:
    """Return the metrics as text; `disks` has free and total bytes of each folder."""
    samples = {"primus_object_store_up": [f" {int(up)}"]}
    if missing is not None:
        samples["primus_object_store_volumes_without_copy"] = [f" {missing}"]
    for index, name in enumerate(("primus_object_store_free_bytes", "primus_object_store_size_bytes")):
        samples[name] = [f'{{folder="{folder}"}} {values[index]}' for folder, values in disks.items()]
    lines = []
    for name, values in samples.items():
        lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge", *(f"{name}{value}" for value in values)]
    return "\n".join(lines) + "\n"


def main(file: str, master_port: str, s3_port: str, *folders: str) -> None:
    """Write the file atomically; node_exporter reads only names that end in .prom."""
    disks = {}
    for folder in folders:
        usage = shutil.disk_usage(folder)
        disks[folder] = (usage.free, usage.total)
    text = render(up=is_up(int(s3_port)), missing=volumes_without_copy(master_metrics(int(master_port))), disks=disks)
    new = Path(f"{file}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o644)
    new.replace(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
