"""What every measuring program does around its measuring: options, device, time limit, one result line a series, exit code."""

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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

Options = TypeVar("Options")

# A process that is stuck in a library with the interpreter's lock does not run the thread of the limit: faulthandler ends it so much later.
_SECOND_LINE_S = 10.0
# All ranks' limits run out at about one moment: time for each to write its line before torchrun ends the others.
_PEERS_S = 1.0
# How long a stop waits where it must not come.
_LATER_S = 0.05


@dataclass(slots=True)
class Series:
    """What is being measured now: one metric at one size. Without `done` it has no result."""

    metric: str
    unit: str
    better: Literal["higher", "lower"]
    sizes: Sizes
    started: float = field(default_factory=time.monotonic)
    samples: list[float] = field(default_factory=list)
    correct: bool | None = None

    def done(self, samples: Sequence[float], *, correct: bool | None) -> None:
        """Keep the samples (seven digits are more than a clock gives), and whether what was computed was right."""
        self.samples, self.correct = [float(f"{sample:.7g}") for sample in samples], correct


@dataclass(slots=True)
class Run:
    """One process of a benchmark. `shared` means that all ranks measure one thing together, and rank 0 writes it."""

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
        """Measure a series; its line is written at the end, also where the end is an error.

        After an error of torch or of the settings a program goes on with its next series; not where the ranks measure together.
        """
        series = self.open = Series(metric, unit, better, sizes)
        try:
            yield series
        except (WorkloadError, RuntimeError, OSError) as error:
            if self.shared or isinstance(error, StoppedError):
                raise
            self.fail(error)
        else:
            self._keep(series)

    def fail(self, error: BaseException) -> None:
        """Write the line of a series that has no value, say why, and remember the exit code."""
        what, fix = _explain(error)
        code = error.exit_code if isinstance(error, WorkloadError) else 1
        self.exit_code = self.exit_code or code
        print(f"{self.benchmark}: rank {own_rank()}: {what}\n  fix: {fix}", file=sys.stderr, flush=True)
        series = self.open or Series("none", "", "lower", {})
        self.open = None
        if self.shared and isinstance(error, StoppedError) and own_rank() != 0:
            return  # most likely another rank has failed, and its line says why
        append_result(self.folder, self._result(series, error=what))

    def _keep(self, series: Series) -> None:
        """Write and show a series, whole, also where the program is asked to stop; a wrong result is a measured one, and ends it with 1."""
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


_KEEP = Run._keep.__code__  # noqa: SLF001 - by it a signal's handler knows where it came


class StoppedError(WorkloadError):
    """The program was asked to stop before it had measured."""

    exit_code = 143


@dataclass(frozen=True, slots=True)
class Benchmark(Generic[Options]):
    """A benchmark: `measure` does the work with options of the kind `options`, which have `device` and `timeout_s`.

    `shared`: all ranks measure one thing together; otherwise each GPU is measured by its rank, a CPU by the first rank of its host.
    """

    name: str
    meaning: str
    options: type[Options]
    measure: Callable[[Options, Run], None]
    shared: bool = False


def run_benchmark(benchmark: Benchmark[Options], argv: Sequence[str]) -> int:
    """Measure; return the exit code: 0 measured, 1 not all of it or wrong, 2 asked for wrongly, 77 took too long, 143 stopped."""
    name, shared = benchmark.name, benchmark.shared
    options = parse_options(benchmark.options, benchmark.meaning, argv)
    run = Run(name, asdict(options), Path(os.environ.get("RUN_DIR", ".")), shared)  # type: ignore[call-overload]
    signal.signal(signal.SIGTERM, _stop)
    with _time_limit(run):
        try:
            run.device = choose_device(options.device)  # type: ignore[attr-defined]
            run.ranks = world_size() if shared else 1
            if not shared and run.device.type == "cpu" and os.environ.get("LOCAL_RANK", "0") != "0":
                print(f"{name}: the first rank of this host measures it")
            else:
                benchmark.measure(options, run)
                if signal.getitimer(signal.ITIMER_REAL)[0]:
                    time.sleep(2 * _LATER_S)  # a stop waits since the last line was written
        except (WorkloadError, RuntimeError, OSError) as error:
            run.fail(error)
        except BaseException as error:
            run.fail(error)
            raise
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not shared:
        _meet(options.timeout_s)  # type: ignore[attr-defined]
    return run.exit_code


def _stop(number: int, frame: FrameType | None) -> None:
    if _has_to_wait(frame):
        signal.signal(signal.SIGALRM, lambda _, later: _stop(number, later))
        signal.setitimer(signal.ITIMER_REAL, _LATER_S)
        return
    raise StoppedError(f"stopped by {signal.Signals(number).name}", fix="see who sent it: the scheduler's limit, or a person")


def _has_to_wait(frame: FrameType | None) -> bool:
    """Return whether an exception must not be raised here.

    Python prints and forgets it in finalisers and in what weak references call when their object goes. While a series is written
    it would make half a line of a measured one, or an error beside it.
    """
    while frame is not None:
        code = frame.f_code
        if code is _KEEP or code.co_name == "__del__" or frame.f_globals.get("__name__") in ("_weakrefset", "weakref"):
            return True
        frame = frame.f_back
    return False


def _explain(error: BaseException) -> tuple[str, str]:
    """Return what went wrong in one line, and how to mend it."""
    if isinstance(error, WorkloadError):
        return error.what, error.fix
    what = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if isinstance(error, torch.OutOfMemoryError):
        return what, "free the device's memory (another process may hold it), or choose smaller sizes"
    return what, "read this rank's log; run it again alone on this node to see whether it is the node"


def _meet(timeout_s: float) -> None:
    """Wait for the other ranks: torchrun ends all of them when the first leaves with an error, and they would lose their lines."""
    if world_size() == 1:
        return
    # A rank that cannot be met has ended, and torchrun is about to end this one as well: all lines of this one are written.
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
        dist.monitored_barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        print(f"the other ranks could not be met: {error}", file=sys.stderr)


@contextmanager
def _time_limit(run: Run) -> Iterator[None]:
    """End this process with a line where it takes longer than its options allow; nothing else ends one that is stuck in a library."""
    limit_s: float = run.options["timeout_s"]
    over = threading.Event()

    def watch() -> None:
        if over.wait(limit_s):
            return
        run.fail(
            StalledError(
                f"took longer than {limit_s:g} s", fix="look at this node's kernel log; raise --timeout-s where it may take so long"
            )
        )
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        time.sleep(_PEERS_S)
        os._exit(StalledError.exit_code)

    threading.Thread(target=watch, name="time limit", daemon=True).start()
    faulthandler.dump_traceback_later(limit_s + _SECOND_LINE_S, exit=True)
    try:
        yield
    finally:
        over.set()
        faulthandler.cancel_dump_traceback_later()
