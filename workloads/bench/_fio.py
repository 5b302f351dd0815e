"""Read and write a file with fio (https://fio.readthedocs.io/en/latest/fio_doc.html)."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from workloads.bench._child import run_child
from workloads.bench._own_io import Done
from workloads.common.errors import StorageError

if TYPE_CHECKING:
    from workloads.bench._own_io import DataFile, Pass

_KINDS = {"sequential_write": "write", "sequential_read": "read", "random_write": "randwrite", "random_read": "randread"}
_VERSION_S = 20


def version() -> str | None:
    """Return the output of `fio --version`, or None if fio is not installed or fails."""
    if shutil.which("fio") is None:
        return None
    done = run_child(["fio", "--version"], timeout_s=_VERSION_S)
    return done.stdout.strip() if done.returncode == 0 else None


def run(data: DataFile, step: Pass, timeout_s: float) -> Done:
    """Read or write the file once.

    Raises:
        StorageError: fio failed, or its output has no results.
    """
    done = run_child(["fio", *arguments(data, step)], timeout_s=timeout_s)
    if done.returncode != 0:
        fix = "check that the storage supports the operation, or use --tool own"
        raise StorageError(f"fio failed with exit code {done.returncode}: {_last_line(done.stderr)}", fix=fix)
    return read(done.stdout, step.operation)


def arguments(data: DataFile, step: Pass) -> list[str]:
    """Return fio's arguments. Each job reads or writes its own part of the file once."""
    sequential, write = step.operation.startswith("sequential"), step.operation.endswith("write")
    part = data.size // step.jobs // step.block * step.block
    return [
        "--name=primus",
        f"--filename={data.path}",
        f"--rw={_KINDS[step.operation]}",
        f"--bs={step.block}",
        f"--size={part}",
        f"--offset_increment={part}",
        f"--numjobs={step.jobs}",
        "--thread",
        "--group_reporting",
        "--ioengine=psync",
        f"--direct={int(data.direct)}",
        "--invalidate=1",
        "--overwrite=1",
        *([f"--runtime={step.limit_s:g}"] if not sequential else []),
        *(["--end_fsync=1"] if write and sequential else []),
        *(["--sync=1"] if write and not sequential else []),
        "--output-format=json",
    ]


def read(output: str, operation: str) -> Done:
    """Return bytes and seconds from fio's JSON output. Some versions print text before it.

    Raises:
        StorageError: The output contains no result, or an error.
    """
    try:
        job = json.loads(output[output.index("{") :])["jobs"][0]
        part = job["write" if operation.endswith("write") else "read"]
        error, done = job["error"], Done(int(part["io_bytes"]), part["runtime"] / 1000)
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        raise StorageError(f"fio's output cannot be parsed: {problem!r}", fix="check `fio --version`, or use --tool own") from problem
    if error or done.bytes <= 0 or done.seconds <= 0:
        what = f"fio transferred no data: error {error}, {done.bytes} bytes in {done.seconds} s"
        raise StorageError(what, fix="check the kernel log, or use --tool own")
    return done


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no output"
