"""Run a benchmark: options, device, time limit, one result line per series, and the exit code."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import torch
import torch.distributed as dist

from workloads.bench._options import parse_options
from workloads.common.device import device_model, device_serial
from workloads.common.errors import StalledError, WorkloadError
from workloads.common.process_group import choose_device, own_rank, world_size
from workloads.common.results import Result, Sizes, append_result, host_name, now, spread, thinned, versions
from workloads.common.torch_release import reject_unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

Options = TypeVar("Options")

# If a library holds the interpreter's lock, the time limit's thread is blocked. faulthandler then ends the process, this much later.
_FALLBACK_S = 10.0
# The limits of all ranks expire at about the same time. This is the time for each rank to write its line before torchrun ends the others.
_PEERS_S = 1.0
# The delay before a postponed stop is raised again.
_RETRY_S = 0.05


@dataclass(slots=True)
class Series:
    """The series that is being measured: one metric at one size. `done` sets its result."""

    metric: str
    unit: str
    better: Literal["higher", "lower"]
    sizes: Sizes
    started: float = field(default_factory=time.monotonic)
    samples: list[float] = field(default_factory=list)
    correct: bool | None = None

    def done(self, samples: Sequence[float], *, correct: bool | None) -> None:
        """Store the samples, rounded to seven digits, and whether the computed result was correct."""
        self.samples, self.correct = [float(f"{sample:.7g}") for sample in samples], correct


@dataclass(slots=True)
class Run:
    """One process of a benchmark. `shared`: all ranks measure together, and rank 0 writes the result."""

    benchmark: str
    options: dict[str, Any]
    folder: Path
    shared: bool
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    ranks: int = 1
    open: Series | None = None
    exit_code: int = 0

    @contextmanager
    def series(self, metric: str, unit: str, better: Literal["higher", "lower"], sizes: Sizes) -> Iterator[Series]:
        """Measure a series, and write its line at the end, also after an error.

        After an error, the benchmark continues with the next series, unless the ranks measure together.
        """
        series = self.open = Series(metric, unit, better, sizes)
        try:
            yield series
        except (WorkloadError, RuntimeError, OSError) as error:
            if self.shared or isinstance(error, StoppedError):
                raise
            self.fail(error)
        else:
            self._write(series)

    def fail(self, error: BaseException) -> None:
        """Print the error, write the line of the failed series, and set the exit code."""
        what, fix = _explain(error)
        code = error.exit_code if isinstance(error, WorkloadError) else 1
        self.exit_code = self.exit_code or code
        print(f"{self.benchmark}: rank {own_rank()}: {what}\n  fix: {fix}", file=sys.stderr, flush=True)
        series = self.open or Series("none", "", "lower", {})
        self.open = None
        if self.shared and isinstance(error, StoppedError) and own_rank() != 0:
            return  # another rank has probably failed and writes the line
        append_result(self.folder, self._result(series, error=what))

    def _write(self, series: Series) -> None:
        """Write and print a series, without interruption by a stop. A wrong result is written too, and sets the exit code to 1."""
        self.open = None
        if series.correct is False:
            self.exit_code = self.exit_code or 1
        if self.shared and own_rank() != 0:
            return
        result = self._result(series, error="")
        where = f"{result.host}{' GPU ' + result.device if result.device else ''}"
        what = " ".join(str(value) for value in series.sizes.values())
        wrong = "  WRONG RESULT" if series.correct is False else ""
        print(
            f"{self.benchmark} {what}: {series.metric} median {result.value:.4g} {series.unit} of {result.repeats}, p95 {result.p95:.4g}"
            f" ({where}, {result.model}){wrong}",
            flush=True,
        )
        append_result(self.folder, result)

    def _result(self, series: Series, *, error: str) -> Result:
        figures = spread(series.samples if not error else [])
        alone = self.device.type == "cuda" and not self.shared
        return Result(
            benchmark=self.benchmark,
            metric=series.metric,
            value=figures["median"],
            unit=series.unit,
            better=series.better,
            sizes=series.sizes,
            host=host_name(),
            device=str(self.device.index) if alone else "",
            model=device_model(self.device),
            serial=device_serial(self.device) if alone else "",
            ranks=self.ranks,
            repeats=int(figures["n"] or 0),
            samples=thinned(series.samples) if not error else [],
            p95=figures["p95"],
            correct=None if error else series.correct,
            error=error,
            versions=versions(),
            time=now(),
            seconds=round(time.monotonic() - series.started, 3),
            options=self.options,
        )


_WRITE = Run._write.__code__  # noqa: SLF001 - the signal handler looks for it on the stack


class StoppedError(WorkloadError):
    """The benchmark was stopped by a signal."""

    exit_code = 143


@dataclass(frozen=True, slots=True)
class Benchmark(Generic[Options]):
    """A benchmark. `measure` takes options of the type `options`, which has the fields `device` and `timeout_s`.

    `shared`: all ranks measure together. Otherwise each rank measures its GPU, or the first rank of a host measures its CPU.
    """

    name: str
    meaning: str
    options: type[Options]
    measure: Callable[[Options, Run], None]
    shared: bool = False


def run_benchmark(benchmark: Benchmark[Options], argv: Sequence[str]) -> int:
    """Run the benchmark; return the exit code: 0 success, 1 a series failed or was wrong, 2 wrong options, 77 time limit, 143 stopped."""
    name, shared = benchmark.name, benchmark.shared
    options = parse_options(benchmark.options, benchmark.meaning, argv)
    code = reject_unsupported(name)
    if code:
        return code
    run = Run(name, asdict(options), Path(os.environ.get("RUN_DIR", ".")), shared)  # type: ignore[call-overload]
    signal.signal(signal.SIGTERM, _stop)
    with _time_limit(run):
        try:
            run.device = choose_device(options.device)  # type: ignore[attr-defined]
            run.ranks = world_size() if shared else 1
            if not shared and run.device.type == "cpu" and os.environ.get("LOCAL_RANK", "0") != "0":
                print(f"{name}: measured by the first rank of this host")
            else:
                benchmark.measure(options, run)
                if signal.getitimer(signal.ITIMER_REAL)[0]:
                    time.sleep(2 * _RETRY_S)  # a stop was postponed while the last line was written
        except (WorkloadError, RuntimeError, OSError) as error:
            run.fail(error)
        except BaseException as error:
            run.fail(error)
            raise
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not shared:
        _wait_for_ranks(options.timeout_s)  # type: ignore[attr-defined]
    return run.exit_code


def _stop(number: int, frame: FrameType | None) -> None:
    if _must_postpone(frame):
        signal.signal(signal.SIGALRM, lambda _, later: _stop(number, later))
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        return
    raise StoppedError(f"stopped by {signal.Signals(number).name}", fix="check the scheduler's time limit, or who sent the signal")


def _must_postpone(frame: FrameType | None) -> bool:
    """Return whether an exception must not be raised here.

    Python ignores exceptions in finalizers and callbacks of weak references. While a series is written, an exception would leave a partial
    line.
    """
    while frame is not None:
        code = frame.f_code
        if code is _WRITE or code.co_name == "__del__" or frame.f_globals.get("__name__") in ("_weakrefset", "weakref"):
            return True
        frame = frame.f_back
    return False


def _explain(error: BaseException) -> tuple[str, str]:
    """Return the error as one line, and the fix."""
    if isinstance(error, WorkloadError):
        return error.what, error.fix
    what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if isinstance(error, torch.OutOfMemoryError):
        return what, "end other processes on the device, or choose smaller sizes"
    return what, "read this rank's log; repeat the benchmark on this node alone to see whether the node is faulty"


def _wait_for_ranks(timeout_s: float) -> None:
    """Wait until all ranks have written their lines: torchrun ends all ranks as soon as one exits with an error."""
    if world_size() == 1:
        return
    # If this fails, a rank has already ended, and torchrun will end this rank, which has written all its lines.
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        dist.monitored_barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        print(f"waiting for the other ranks failed: {error}", file=sys.stderr)


@contextmanager
def _time_limit(run: Run) -> Iterator[None]:
    """Write a failed series and end this process after its time limit, also if it is stuck in a library."""
    limit_s: float = run.options["timeout_s"]
    over = threading.Event()

    def watch() -> None:
        if over.wait(limit_s):
            return
        run.fail(StalledError(f"exceeded its time limit of {limit_s:g} s", fix="check this node's kernel log, or raise --timeout-s"))
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        time.sleep(_PEERS_S)
        os._exit(StalledError.exit_code)

    threading.Thread(target=watch, name="time limit", daemon=True).start()
    faulthandler.dump_traceback_later(limit_s + _FALLBACK_S, exit=True)
    try:
        yield
    finally:
        over.set()
        faulthandler.cancel_dump_traceback_later()
