"""Measure the storage of a folder: sequential and random reads and writes, and files created, looked up and removed per second.

    python workloads/bench/storage.py --folder /mnt/juicefs [--size-mib 4096 --jobs 16]

The first rank of each host measures. Reads and writes bypass the page cache (O_DIRECT) if the file system supports it; otherwise the file's
pages are dropped before a read. Writes include the sync: fsync at the end of sequential writes, O_SYNC for random writes. If fio is
installed, it reads and writes; otherwise this program does. Each block is read or written once per sample, so a sample does not hit blocks
that it has cached itself. A cache of the file system, as in JuiceFS, is part of the measurement.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from workloads.bench import _fio
from workloads.bench._options import REPEATS, TIMEOUT_S
from workloads.bench._own_io import DataFile, Pass
from workloads.bench._run import Benchmark, Run, run_benchmark
from workloads.bench._scratch import require_space, scratch_folder
from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.common.results import Sizes

_MIB, _KIB = 2**20, 2**10
_FILE_BYTES = 4096
_OPERATIONS = ("sequential_write", "sequential_read", "random_read", "random_write")


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """The options."""

    folder: str = field(default="", metadata={"help": "existing folder on the storage to measure"})
    tool: str = field(default="auto", metadata={"help": "fio, own, or auto: fio if it is installed", "choices": ("auto", "fio", "own")})
    size_mib: int = field(default=64, metadata={"help": "size of the file (MiB); it should exceed the storage's caches"})
    block_kib: int = field(default=1024, metadata={"help": "block of sequential operations (KiB)"})
    random_block_kib: int = field(default=4, metadata={"help": "block of random operations (KiB)"})
    jobs: int = field(default=4, metadata={"help": "parallel random operations"})
    seconds: float = field(default=1.0, metadata={"help": "time limit of a sample of random operations (s)"})
    files: int = field(default=200, metadata={"help": "files to create, look up and remove; 0 skips this"})
    keep_free_percent: float = field(default=10.0, metadata={"help": "share of the file system that must stay free (%%)"})
    device: str = field(default="cpu", metadata={"help": "always cpu", "choices": ("cpu",)})
    repeats: int = field(default=5, metadata=REPEATS)
    timeout_s: float = field(default=600.0, metadata=TIMEOUT_S)


def measure(options: StorageOptions, run: Run) -> None:
    """Measure all operations in a temporary folder."""
    parent, size = _checked_folder(options), options.size_mib * _MIB
    fio = None if options.tool == "own" else _fio.version()
    if options.tool == "fio" and fio is None:
        raise SettingsError("fio is not installed", fix="install fio, or use --tool own")
    run.options["tool"] = fio or "own"
    require_space(parent, size + options.files * _FILE_BYTES, options.keep_free_percent)
    with scratch_folder(parent) as folder:
        data = DataFile(folder / "data", size)
        for operation in _OPERATIONS:
            sequential = operation.startswith("sequential")
            step = Pass(
                operation,
                (options.block_kib if sequential else options.random_block_kib) * _KIB,
                1 if sequential else options.jobs,
                options.timeout_s if sequential else options.seconds,
            )
            _measure_pass(options, run, data, step, fio=fio is not None)
        if options.files:
            _measure_names(options, run, folder / "names")


def _measure_pass(options: StorageOptions, run: Run, data: DataFile, step: Pass, *, fio: bool) -> None:
    """Measure one kind of reads or writes. This program's own writes are verified."""
    sequential = step.operation.startswith("sequential")
    metric, unit = ("gb_per_s", "GB/s") if sequential else ("operations_per_s", "1/s")
    sizes: Sizes = {
        "operation": step.operation,
        "folder": options.folder,
        "bytes": data.size,
        "block_bytes": step.block,
        "jobs": step.jobs,
        "io": "direct" if data.direct else "buffered",
        "tool": "fio" if fio else "own",
    }
    with run.series(metric, unit, "higher", sizes) as series:
        if not step.operation.endswith("write"):
            data.fill()
        samples = []
        for _ in range(options.repeats):
            done = _fio.run(data, step, options.timeout_s) if fio else data.run(step)
            samples.append(done.bytes / done.seconds / (1e9 if sequential else step.block))
        series.done(samples, correct=None if fio else data.is_correct())


def _measure_names(options: StorageOptions, run: Run, folder: Path) -> None:
    """Measure metadata operations: create empty files, look them up, remove them."""
    folder.mkdir()
    paths = [folder / f"{number:08d}" for number in range(options.files)]
    steps: dict[str, tuple[Callable[[Path], object], int]] = {
        "create": (lambda path: path.touch(exist_ok=False), options.files),
        "stat": (lambda path: path.stat(), options.files),
        "remove": (lambda path: path.unlink(), 0),
    }
    samples: dict[str, list[float]] = {name: [] for name in steps}
    correct = dict.fromkeys(steps, True)
    sizes: Sizes = {"folder": options.folder, "files": options.files, "tool": "own"}
    with run.series("operations_per_s", "1/s", "higher", {"operation": "create", **sizes}) as series:
        for _ in range(options.repeats):
            for name, (operation, left) in steps.items():
                started = time.perf_counter()
                for path in paths:
                    operation(path)
                samples[name].append(options.files / (time.perf_counter() - started))
                correct[name] = correct[name] and len(list(folder.iterdir())) == left
        series.done(samples["create"], correct=correct["create"])
    for name in ("stat", "remove"):
        if samples[name]:
            with run.series("operations_per_s", "1/s", "higher", {"operation": name, **sizes}) as series:
                series.done(samples[name], correct=correct[name])


def _checked_folder(options: StorageOptions) -> Path:
    if not options.folder:
        raise SettingsError("--folder is missing", fix="pass --folder with a folder on the storage to measure")
    size = options.size_mib * _KIB
    for name, block in (("--block-kib", options.block_kib), ("--random-block-kib", options.random_block_kib)):
        if block < 4 or block % 4 or size % block:
            raise SettingsError(
                f"{name} is {block}", fix="give a multiple of 4 that divides the file's size: O_DIRECT requires whole pages"
            )
    if options.jobs < 1 or options.seconds <= 0:
        raise SettingsError("--jobs and --seconds must be more than 0", fix="give positive numbers")
    return Path(options.folder)


BENCHMARK = Benchmark("storage", "Measure the storage of a folder.", StorageOptions, measure)


def main(argv: list[str]) -> int:
    """Measure; return the exit code."""
    return run_benchmark(BENCHMARK, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
