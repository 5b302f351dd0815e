"""The task `preflight`: whether this node can take a run. Verdict records, one a check; unknown is said and never counted as good.

    primus-cli … preflight [--min-free-gib N] [--expect-gpus N]

Exit codes: 0 nothing failed, 4 something did.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import sys
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.launch import gpus, nics, sysfs
from primus_bootstrap.launch.records import FAIL, PASS, SKIPPED, UNKNOWN, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_NOT_MET = 4
_GIB = 2**30
_SHM_GIB = 8  # what data loaders and RCCL/NCCL share between processes of one node; docker's default of 64 MiB is the usual failure


def main(arguments: Sequence[str]) -> int:
    """Look at this node; print and keep the records; return the exit code."""
    parser = argparse.ArgumentParser(prog="preflight", description="Look at this node before a run.", allow_abbrev=False)
    parser.add_argument(
        "--min-free-gib", type=float, default=10.0, metavar="N", help="free space that the run folder needs (GiB, default: 10)"
    )
    parser.add_argument("--expect-gpus", type=int, metavar="N", help="how many GPUs this node should have (default: nothing is expected)")
    options = parser.parse_args(arguments)
    host = os.environ.get("PRIMUS_NODE") or socket.gethostname()
    started = time.time()
    run_dir = Path(os.environ.get("RUN_DIR", "."))
    found = look(Path("/"), run_dir, os.environ, min_free_gib=options.min_free_gib, expected_gpus=options.expect_gpus)
    seconds = round(time.time() - started, 3)
    records = [replace(record, host=host, started=started, seconds=seconds) for record in found]
    for record in records:
        detail = f"{record.found} {record.unit}".strip()
        sys.stdout.write(f"{record.verdict:8}{record.check}: {detail} {record.reason}".rstrip() + "\n")
        if record.verdict == FAIL:
            sys.stdout.write(f"          fix: {record.fix}\n")
    (run_dir / f"preflight-{host}.jsonl").write_text("".join(json.dumps(record.to_json()) + "\n" for record in records), "utf-8")
    return _NOT_MET if any(record.verdict == FAIL for record in records) else 0


def look(
    root: Path, run_dir: Path, environment: Mapping[str, str], *, min_free_gib: float = 10.0, expected_gpus: int | None = None
) -> tuple[Record, ...]:
    """Return a record of every check."""
    has_rdma = any(port.state == "ACTIVE" for port in nics.read_ports(sysfs.Host(root)))
    return (
        _gpus(root, expected_gpus),
        _free_space(run_dir, min_free_gib),
        _locked_memory(has_rdma=has_rdma),
        _shared_memory(root),
        _torch(),
        _way_to_node_0(environment),
    )


def _gpus(root: Path, expected: int | None) -> Record:
    found = gpus.find_gpus(sysfs.Host(root))
    text = f"{len(found.gpus)} x {found.name}".rstrip(" x")
    wish = "" if expected is None else str(expected)
    if found.verdict in (gpus.UNKNOWN, gpus.MIXED):
        verdict = UNKNOWN if found.verdict == gpus.UNKNOWN else FAIL
        return Record(
            "preflight_gpus",
            "",
            verdict,
            expected=wish,
            found=text,
            reason=found.reason,
            fix="look at the node's PCI devices and its driver",
        )
    if expected is not None and len(found.gpus) != expected:
        return Record(
            "preflight_gpus",
            "",
            FAIL,
            expected=wish,
            found=text,
            reason="another number of GPUs",
            fix="look for one that fell off the bus: lspci, dmesg",
        )
    return Record("preflight_gpus", "", PASS if found.gpus else SKIPPED, expected=wish, found=text, reason=found.reason)


def _free_space(run_dir: Path, min_free_gib: float) -> Record:
    try:
        free = shutil.disk_usage(run_dir).free / _GIB
    except OSError as error:
        return Record(
            "preflight_space",
            "",
            UNKNOWN,
            expected=f">= {min_free_gib}",
            unit="GiB",
            reason=str(error),
            fix="see that the run folder is there",
        )
    verdict = PASS if free >= min_free_gib else FAIL
    return Record(
        "preflight_space",
        "",
        verdict,
        expected=f">= {min_free_gib}",
        found=f"{free:.1f}",
        unit="GiB",
        fix=f"make room on the file system of {run_dir}",
    )


def _locked_memory(*, has_rdma: bool) -> Record:
    if not has_rdma:
        return Record("preflight_memlock", "", SKIPPED, reason="no active RDMA port")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    unlimited = limit == resource.RLIM_INFINITY
    found = "unlimited" if unlimited else f"{limit / _GIB:.2f} GiB"
    source = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"
    return Record(
        "preflight_memlock",
        "",
        PASS if unlimited else FAIL,
        expected="unlimited",
        found=found,
        source=source,
        fix="apply the phase baseline, or in a container --ulimit memlock=-1",
    )


def _shared_memory(root: Path) -> Record:
    try:
        size = shutil.disk_usage(root / "dev/shm").total / _GIB
    except OSError as error:
        return Record("preflight_shm", "", UNKNOWN, expected=f">= {_SHM_GIB}", unit="GiB", reason=str(error), fix="mount /dev/shm")
    return Record(
        "preflight_shm",
        "",
        PASS if size >= _SHM_GIB else FAIL,
        expected=f">= {_SHM_GIB}",
        found=f"{size:.1f}",
        unit="GiB",
        fix="in a container: --ipc host or --shm-size 16g",
    )


def _torch() -> Record:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Record(
            "preflight_torch",
            "",
            FAIL,
            found="none",
            reason=f"{sys.executable} has no torch",
            fix="set --venv or --python to the one that has it",
        )
    return Record("preflight_torch", "", PASS, found=version)


def _way_to_node_0(environment: Mapping[str, str]) -> Record:
    address = environment.get("MASTER_ADDR", "")
    if not address:
        return Record("preflight_node_0", "", SKIPPED, reason="a run on one node")
    try:
        found = socket.getaddrinfo(address, None)[0][4][0]
    except OSError as error:
        return Record(
            "preflight_node_0",
            "",
            FAIL,
            found=address,
            reason=f"its name cannot be resolved: {error}",
            fix="see /etc/hosts and the name service of this node",
        )
    return Record("preflight_node_0", "", PASS, found=f"{address} is {found}")
