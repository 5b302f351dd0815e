"""The files of a run's metrics: a record per step in steps.jsonl, and Prometheus text files. Needs no torch, so all backends use it."""

from __future__ import annotations

import hashlib
import io
import os
import pwd
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from workloads.common.files import replace_text

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA = 1
# The host's exporter reads the metrics of an account here. The role primus_exporter creates this folder.
_METRICS_FOLDER = "/var/lib/primus/training"
_OLD_METRICS_S = 7 * 86_400.0
_METRICS_NAME = re.compile(r"[A-Za-z0-9_-]{0,40}-[0-9a-f]{12}\.prom")

_GAUGES = {
    "running": "1 while the run trains, 0 after its end",
    "step": "Completed optimizer steps",
    "loss": "Mean loss of a target token in the latest step",
    "validation_loss": "Mean loss of a validation token after the latest step; absent if it was not computed",
    "reward": "Mean reward of the completions of the latest step; absent without rewards",
    "grad_norm": "Norm of the gradient before clipping",
    "learning_rate": "Learning rate",
    "tokens_per_s": "Tokens per second over all ranks",
    "tflops_per_s_per_device": "Model TFLOP/s per device",
    "mfu": "Share of the device's peak, 0 to 1; absent if the peak is not known",
    "step_time_s": "Duration of the latest step in seconds",
    "checkpoint_wait_s": "Seconds that training waited for the latest checkpoint",
    "data_wait_s": "Seconds that the slowest rank waited for data in the latest step",
    "memory_peak_gib": "Peak memory of the rank with the largest peak",
    "checkpoint_step": "Step of the newest complete checkpoint",
    "checkpoint_failures": "Consecutive checkpoints that could not be written",
}


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One line of steps.jsonl."""

    time: str
    step: int
    loss: float
    balance_loss: float | None
    grad_norm: float
    learning_rate: float
    tokens: int  # tokens since the start of the run
    step_time_s: float  # from the end of the previous step to the end of this one, including `data_wait_s` and `checkpoint_wait_s`
    data_wait_s: float
    checkpoint_wait_s: float  # the time that training waited for the previous step's checkpoint
    tokens_per_s: float
    tokens_per_s_per_device: float
    tflops_per_s_per_device: float
    mfu: float | None  # None if the device's peak is not known
    memory_peak_gib: float
    checkpoint: str
    checkpoint_step: int
    checkpoint_failures: int
    schema: int = SCHEMA
    validation_loss: float | None = None  # after this step; None if it was not computed
    reward: float | None = None  # mean reward of this step's completions, in reinforcement learning


class Gauges:
    """The Prometheus text files of a run: one in the run folder, and one for the host's exporter."""

    def __init__(self, folder: Path, stated: str) -> None:
        """Choose the files.

        Args:
            folder: The run folder.
            stated: The setting `telemetry.prometheus_file`, which replaces both files.
        """
        default, other = folder / "metrics.prom", Path(stated) if stated else None
        self._required = default if other in (None, default) else None  # the watcher reads it
        self._extra = None if other == default else other
        self._failed = False
        account_folder = metrics_folder()
        if not stated and account_folder is not None:
            self._extra = account_folder / metrics_name(folder)
            remove_old(account_folder)

    def write(self, text: str) -> None:
        """Replace the files.

        A file outside the run folder is for dashboards only: if it cannot be written, a message is printed once, and the run continues.

        Raises:
            OSError: The file in the run folder cannot be written.
        """
        if self._required is not None:
            replace_text(self._required, text, durable=False)
        if self._extra is not None:
            try:
                replace_text(self._extra, text, durable=False)
                self._failed = False
            except OSError as error:
                if not self._failed:
                    print(f"telemetry: {self._extra} cannot be written ({error}); the run continues without it", flush=True)
                self._failed = True


def metrics_folder() -> Path | None:
    """Return the folder in which the host's exporter reads the files of this account, or None.

    PRIMUS_METRICS_FOLDER overrides it; an empty value disables it. Jobs with a watcher have none: the watcher copies `metrics.prom`.
    """
    stated = os.environ.get("PRIMUS_METRICS_FOLDER")
    if stated is None and os.environ.get("PRIMUS_JOB_ID"):
        return None
    if stated is None:
        try:
            stated = f"{_METRICS_FOLDER}/{pwd.getpwuid(os.geteuid()).pw_name}"
        except KeyError:  # an account without a name, as in some containers
            return None
    return Path(stated) if stated and os.access(stated, os.W_OK | os.X_OK) else None


def metrics_name(folder: Path) -> str:
    """Return the file name of a run in the folder of its account. It depends on the run folder only, so a restart reuses it."""
    return f"{re.sub(r'[^A-Za-z0-9_-]', '-', folder.name)[:40]}-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}.prom"


def remove_old(folder: Path) -> None:
    """Remove metric files of runs that ended long ago."""
    with suppress(OSError):
        for path in folder.glob("*.prom"):
            with suppress(OSError):
                if _METRICS_NAME.fullmatch(path.name) and path.lstat().st_mtime < time.time() - _OLD_METRICS_S:
                    path.unlink()


def open_for_lines(path: Path) -> IO[str]:
    """Open a file to append lines. Add a newline to a line that a crash or a full disk truncated.

    The file is not truncated, because readers remember their position.
    """
    file = path.open("ab+")
    if file.tell() and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n":
        file.write(b"\n")
    return io.TextIOWrapper(file, encoding="utf-8")


def line(record: StepRecord) -> str:
    """Return the printed line of a step."""
    share = "" if record.mfu is None else f"  MFU {record.mfu:.1%}"
    validation = "" if record.validation_loss is None else f"  validation loss {record.validation_loss:.4f}"
    reward = "" if record.reward is None else f"  reward {record.reward:.4f}"
    return (
        f"step {record.step}  loss {record.loss:.4f}{reward}{validation}  grad {record.grad_norm:.3f}  lr {record.learning_rate:.2e}"
        f"  {record.tokens_per_s:,.0f} tokens/s  {record.tflops_per_s_per_device:.3g} TFLOP/s{share}"
        f"  step {record.step_time_s:.3f} s  data {record.data_wait_s:.3f} s  memory {record.memory_peak_gib:.2f} GiB"
        f"  checkpoint {record.checkpoint} ({record.checkpoint_step})"
    )


def prometheus_text(record: StepRecord, labels: Mapping[str, str], *, running: bool = True) -> str:
    """Return the record in Prometheus' text format. After the end of the run, only the last step is included."""
    values: dict[str, Any] = {**asdict(record), "running": int(running)}
    # https://prometheus.io/docs/instrumenting/exposition_formats/#text-format-details
    quoted = {name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in labels.items()}
    series = ",".join(f'{name}="{value}"' for name, value in quoted.items())
    parts = []
    for name, meaning in _GAUGES.items():
        if values[name] is not None and (running or name in ("running", "step")):
            full = f"primus_train_{name}"
            parts.append(f"# HELP {full} {meaning}\n# TYPE {full} gauge\n{full}{{{series}}} {values[name]}\n")
    return "".join(parts)
