#!/usr/bin/env python3
"""Measure this project on one GPU: detection, tests, training, benchmarks, traces, injected failures, and torchtitan for comparison.

    python tools/gpu_measure.py --out FOLDER [--parts detect,train/1b*] [--limit-s 3600] [--list] [--tiny]

Run it with a Python that has torch. It writes FOLDER/measurements.json after every step, so an interrupted run keeps its results.
Each step is a process with a time limit. If a step fails, the file contains the end of its output, and the next step starts.
Steps run in the order of `--parts`. The torchtitan steps fail if it is not installed.
`--tiny` trains small models, also on a CPU, to test the steps; its figures mean nothing.
Exit codes: 0 every step succeeded, 1 a step failed, 2 the arguments are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = "primus.gpu-measurements/1"
_TAIL_LINES, _OUTPUT_LINES = 60, 250
_LINE_CHARS = 400
_MIN_TIME_LEFT_S = 10.0  # needed to start a step
_PRIMUS = (sys.executable, "-m", "primus_bootstrap.launch")
_PROBE = (sys.executable, str(ROOT / "tools" / "gpu_probe.py"))
_DIRECT = (*_PRIMUS, "direct", "--python", sys.executable)
# --noconftest: the fixtures of the whole suite need more packages.
_PYTEST = (sys.executable, "-m", "pytest", str(ROOT / "tests/gpu"), "-q", "--noconftest", "-p", "no:cacheprovider", "-W", "default")
# A CPU trains this model in a second.
_TINY = (
    "model.layers=2", "model.width=64", "model.heads=4", "model.kv_heads=2", "model.ffn_width=128", "model.vocabulary=512",
    "train.sequence_length=64",
)  # fmt: skip
_NO_CHECKPOINT = ("checkpoint.every_steps=0", "checkpoint.at_end=false", "checkpoint.resume=never")
_WARMUP_STEPS, _STEPS = 3, 9
# Files and commands that the GPU checks read in addition to nvidia-smi's XML.
_RAW_DATA = """for device in /sys/bus/pci/devices/*; do
  case $(cat $device/class) in 0x03*|0x12*|0x0680*)
    for file in vendor device class numa_node current_link_speed current_link_width max_link_speed max_link_width; do
      echo "$device/$file $(cat $device/$file 2>&1)"; done; readlink $device/driver;; esac; done
cat /proc/driver/nvidia/gpus/*/information /sys/module/nvidia/version
nvidia-smi nvlink --status | head -30
ls -l /dev/nvidia*; nproc; uname -a; ls /sys/devices/system/node"""
_RESULT_FILES = ("trace.json.gz", "nvidia-smi.xml")


@dataclass(frozen=True)
class Step:
    """A process. `expected` is the exit code of success (None: any); `read` returns figures from its folder."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    expected: int | None = 0
    read: Callable[[Path], dict[str, Any]] = lambda _folder: {}
    environment: dict[str, str] = field(default_factory=dict)
    keep_output: bool = False


@dataclass
class Entry:
    """The result of a step. `outcome` is done, failed, timed out, stopped or left out."""

    name: str
    outcome: str
    command: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    tail: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected steps; return the exit code."""
    options = _parser().parse_args(arguments)
    work = Path(options.work or tempfile.mkdtemp(prefix="gpu-measure-"))
    steps = select_steps(all_steps(work, tiny=options.tiny), options.parts.split(","))
    if not steps:
        sys.stderr.write(f"gpu_measure: no step matches {options.parts}\n  fix: choose steps from python tools/gpu_measure.py --list\n")
        return 2
    if options.list:
        sys.stdout.write("".join(f"{step.name:34} at most {step.limit_s:g} s\n" for step in steps))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    entries: list[Entry] = []
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    end = time.monotonic() + options.limit_s
    for step in steps:
        left_s = end - time.monotonic()
        entry = _run(step, work, min(step.limit_s, left_s)) if left_s >= _MIN_TIME_LEFT_S else Entry(step.name, "left out")
        entries.append(entry)
        _write(options.out, work, entries)
        print(_line(entry), flush=True)
        if entry.outcome == "stopped":
            break
    return 0 if all(entry.outcome == "done" for entry in entries) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu_measure", description="Measure this project on one GPU.")
    parser.add_argument("--out", type=Path, default=Path("gpu-measurements"), metavar="FOLDER", help="folder for the results")
    parser.add_argument(
        "--parts", default="*", metavar="GLOB,...", help="steps or groups of steps, for example train or faults/nan (default: all)"
    )
    parser.add_argument("--limit-s", type=float, default=3600.0, metavar="S", help="time limit for all steps together (default: 3600)")
    parser.add_argument("--work", default="", metavar="FOLDER", help="folder for runs (default: a new temporary folder)")
    parser.add_argument("--list", action="store_true", help="print the steps without running them")
    parser.add_argument("--tiny", action="store_true", help="train tiny models, also on a CPU")
    return parser


def select_steps(steps: Sequence[Step], patterns: Sequence[str]) -> list[Step]:
    """Return the steps whose name or group matches a pattern, in the order of the patterns, without duplicates."""
    selected: dict[str, Step] = {}
    for pattern in patterns:
        for step in steps:
            if fnmatchcase(step.name, pattern) or fnmatchcase(step.name.partition("/")[0], pattern):
                selected.setdefault(step.name, step)
    return list(selected.values())


def all_steps(work: Path, *, tiny: bool) -> list[Step]:
    """Return every step, the most important first."""
    later = [_train(work, name, tiny=tiny) for name in _MORE_VARIANTS]
    return [
        *_detect(work),
        Step("tests/gpu", _PYTEST, 240),
        *(_train(work, name, tiny=tiny) for name in _FIRST_VARIANTS),
        _probe(work, "bench/standard", "bench", ("--rounds", "2", *(("--tiny",) if tiny else ())), 150),
        *_faults(work, tiny=tiny),
        _probe(
            work,
            "trace/1b",
            "trace",
            ("--trace", str(work / "trace.json.gz"), *_train_arguments("1b-fsdp", tiny=tiny), *_small_batch(tiny=tiny)),
            90,
        ),
        *later[:2],
        *_torchtitan(work, tiny=tiny),
        *later[2:5],
        *_memory(work, tiny=tiny),
        _probe(work, "trace/1b-compile", "trace", (*_train_arguments("1b-fsdp-compile", tiny=tiny), *_small_batch(tiny=tiny)), 90),
        *later[5:],
    ]


def _detect(work: Path) -> Iterator[Step]:
    out = str(work / "host")

    def facts(_folder: Path) -> dict[str, Any]:
        path = Path(out, "etc/primus/gpu.json")
        return {"gpu_json": json.loads(path.read_text("utf-8"))} if path.exists() else {}

    yield _probe(work, "detect/torch", "describe", (), 60)
    yield Step("detect/nvidia-smi", ("nvidia-smi",), 30, keep_output=True)
    yield Step("detect/nvidia-smi-topology", ("nvidia-smi", "topo", "-m"), 30, keep_output=True)
    yield Step("detect/nvidia-smi-xml", ("sh", "-c", f"nvidia-smi -q -x > {work / 'nvidia-smi.xml'}"), 30)
    yield Step("detect/raw", ("sh", "-c", _RAW_DATA), 30, expected=None, keep_output=True)
    yield Step("detect/host-env", (*_PRIMUS, "host-env", "--out", out), 30, read=facts, keep_output=True)
    yield Step("detect/env-show", (*_PRIMUS, "env", "show"), 30, keep_output=True)
    # A failed check (exit code 4) is a result, not a failure of the step.
    yield Step("detect/preflight", (*_PRIMUS, "preflight", "--json"), 60, expected=None, read=_verdicts)
    yield Step("detect/plan", (*_PRIMUS, "--dry-run", *_DIRECT[3:], "--", "train", "pretrain"), 30, keep_output=True)


def _verdicts(folder: Path) -> dict[str, Any]:
    text = (folder / "output").read_text("utf-8", "replace")
    verdicts = json.loads(text[text.index("{") :].splitlines()[0])["verdicts"]
    return {"verdicts": [{key: item.get(key) for key in ("check", "verdict", "expected", "found", "unit", "reason")} for item in verdicts]}


_1B = ("--config", "llama-3.2-1b", "train.global_batch=8", "compute.compile=false")
_8B = ("--config", "llama-3.1-8b-slice", "compute.compile=false")
_FIRST_VARIANTS: dict[str, tuple[str, ...]] = {"1b-fsdp": _1B, "1b-fsdp-compile": (*_1B, "compute.compile=true")}
_MORE_VARIANTS: dict[str, tuple[str, ...]] = {
    "1b-ddp-none": (*_1B, "parallel.strategy=ddp", "compute.recompute=none"),
    "1b-ddp-none-compile": (*_1B, "parallel.strategy=ddp", "compute.recompute=none", "compute.compile=true"),
    "8b-slice": _8B,
    "8b-slice-compile": (*_8B, "compute.compile=true"),
    "1b-fsdp-compile-cudnn": (*_1B, "compute.compile=true", "compute.attention=cudnn"),
    "1b-fsdp-none": (*_1B, "compute.recompute=none"),
    "1b-checkpoint": (*_1B, "compute.compile=true", "checkpoint.every_steps=3", "checkpoint.keep=1"),
    "1b-fsdp-efficient": (*_1B, "compute.attention=efficient"),
    "1b-fsdp-flash": (*_1B, "compute.attention=flash"),
    "1b-fsdp-math": (*_1B, "compute.attention=math", "train.global_batch=2", "train.micro_batch=1"),
    "1b-fsdp-none-compile": (*_1B, "compute.recompute=none", "compute.compile=true"),
    "1b-fsdp-full": (*_1B, "compute.recompute=full"),
}


def _train_arguments(name: str, *, tiny: bool) -> tuple[str, ...]:
    arguments = {**_FIRST_VARIANTS, **_MORE_VARIANTS}[name]
    small = (*_TINY, "train.global_batch=2", "train.micro_batch=1") if tiny else ()
    return (*arguments[:2], f"train.steps={_STEPS}", *_NO_CHECKPOINT, *arguments[2:], *small)


def _small_batch(*, tiny: bool) -> tuple[str, ...]:
    """Return settings that keep the trace small."""
    return () if tiny else ("train.global_batch=4",)


def _train(work: Path, name: str, *, tiny: bool) -> Step:
    folder = work / "train" / name
    command = (*_DIRECT, "--output", str(folder), "--", "train", "pretrain", *_train_arguments(name, tiny=tiny))
    return Step(f"train/{name}", command, 150, read=lambda _: train_figures(folder))


def train_figures(folder: Path) -> dict[str, Any]:
    """Return the measurements of a training run from its files."""
    steps = _json_lines(folder / "steps.jsonl")
    result = (_json_lines(folder / "results.jsonl") or [{}])[-1]
    timed = steps[_WARMUP_STEPS:]
    return {
        "tokens_per_s": result.get("tokens_per_s"),
        "tflops_per_s": result.get("tflops_per_s_per_device"),
        "mfu": result.get("mfu"),
        "step_time_s": result.get("step_time_s"),
        "step_times_s": [round(step["step_time_s"], 4) for step in steps],
        "first_step_s": steps[0]["step_time_s"] if steps else None,
        "checkpoint_waits_s": [round(step["checkpoint_wait_s"], 3) for step in steps],
        "data_wait_s": max((step["data_wait_s"] for step in timed), default=None),
        "memory_peak_gib": result.get("memory_peak_gib"),
        "weights_and_optimizer_gib": state_gib(result["parameters"]) if result else None,
        "losses": [round(step["loss"], 4) for step in steps],
        "device": result.get("device"),
    }


def state_gib(parameters: int) -> float:
    """Return the memory of weights, gradients and AdamW's two moments in fp32 (GiB): 16 bytes per parameter, without activations."""
    return round(16 * parameters / 2**30, 2)


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def _probe(work: Path, name: str, probe: str, arguments: tuple[str, ...], limit_s: float) -> Step:
    path = work / f"{name.replace('/', '-')}.json"

    def read(_folder: Path) -> dict[str, Any]:
        return dict(json.loads(path.read_text("utf-8"))) if path.exists() else {}

    return Step(name, (*_PROBE, probe, "--json", str(path), *arguments), limit_s, read=read)


def _faults(work: Path, *, tiny: bool) -> Iterator[Step]:
    """Yield runs with injected failures; the figures are the exit code and the diagnosed cause."""
    debug = ("train", "pretrain", "--config", "debug-dense", *_NO_CHECKPOINT)
    too_large = ("model.vocabulary=128256", "train.sequence_length=8192", "train.micro_batch=64", "train.global_batch=64")
    runs: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "out-of-memory": ((), (*debug, *too_large, "train.steps=2", "compute.precision=bf16")),
        "nan": ((), (*debug, "drill.kind=nan", "drill.step=3")),
        "killed": ((), (*debug, "drill.kind=crash", "drill.step=3")),
        "hang": ((), (*debug, "drill.kind=hang", "drill.step=3", "watchdog.step_timeout_s=5", "watchdog.startup_timeout_s=60")),
        "index": (("--script", str(ROOT / "tools/gpu_probe.py")), ("index-out-of-range",)),
        "illegal-access": (("--script", str(ROOT / "tools/gpu_probe.py")), ("illegal-access",)),
        "gpu-hang": (("--script", str(ROOT / "tools/gpu_probe.py")), ("gpu-hang", "--config", "debug-dense", *_NO_CHECKPOINT)),
    }
    if tiny:
        del runs["out-of-memory"]  # without a GPU it fills the memory of the host
    for name, (flags, arguments) in runs.items():
        folder = work / "faults" / name
        command = (*_DIRECT, "--output", str(folder), *flags, "--", *arguments)
        yield Step(f"faults/{name}", command, 60, expected=None, read=lambda _, folder=folder: _failure(folder), keep_output=True)


def _failure(folder: Path) -> dict[str, Any]:
    path = folder / "failure.json"
    failure = json.loads(path.read_text("utf-8")) if path.exists() else {}
    cause = failure.get("cause") or {}
    return {"cause": cause.get("name") or cause.get("id"), "failure": failure}


def _memory(work: Path, *, tiny: bool) -> Iterator[Step]:
    """Yield searches for the largest micro-batch that fits."""
    for name, variant in (("1b", _1B), ("8b-slice", _8B)):
        for recompute in ("none", "selective", "full"):
            small = (*_TINY, "train.micro_batch=1", "train.global_batch=1") if tiny else ()
            most = ("--most", "4") if tiny else ()
            arguments = (*most, *variant, f"compute.recompute={recompute}", *small)
            yield _probe(work, f"memory/{name}-{recompute}", "memory", arguments, 60)


def _torchtitan(work: Path, *, tiny: bool) -> Iterator[Step]:
    """Yield runs of torchtitan's trainer with the 1B model on one GPU, with the sequence length and batch of `1b-ddp-none`."""
    shape = ("--tiny",) if tiny else ()
    yield _probe(work, "torchtitan/1b-none", "torchtitan", (*shape, "--recompute", "none"), 90)
    yield _probe(work, "torchtitan/1b-none-compile", "torchtitan", (*shape, "--recompute", "none", "--compile"), 120)
    yield _probe(work, "torchtitan/1b-selective-compile", "torchtitan", (*shape, "--recompute", "selective", "--compile"), 120)


def _run(step: Step, work: Path, limit_s: float) -> Entry:
    """Run a step in its own session; stop the whole session at the time limit."""
    folder = work / "steps" / step.name.replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    environment = {
        "PYTHONUNBUFFERED": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        "PRIMUS_METRICS_FOLDER": "",
        **os.environ,
        **step.environment,
        "PYTHONPATH": path,
    }
    started, outcome, code = time.monotonic(), "done", None
    process = None
    with (folder / "output").open("wb") as output:
        try:
            process = subprocess.Popen(
                step.command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True
            )
            code = process.wait(limit_s)
        except OSError as error:
            return Entry(step.name, "failed", " ".join(step.command), tail=[f"{step.command[0]}: {error.strerror}"])
        except (subprocess.TimeoutExpired, KeyboardInterrupt, SystemExit) as reason:
            outcome = "timed out" if isinstance(reason, subprocess.TimeoutExpired) else "stopped"
            if process is not None:
                _end(process)
    if outcome == "done" and step.expected is not None and code != step.expected:
        outcome = "failed"
    try:
        figures = step.read(folder)
    except (OSError, ValueError, KeyError, IndexError) as error:
        figures = {"unreadable": f"{type(error).__name__}: {error}"}
        outcome = "failed" if outcome == "done" else outcome
    lines = _OUTPUT_LINES if step.keep_output else _TAIL_LINES
    tail = _tail(folder / "output", lines) if outcome != "done" or step.keep_output else []
    return Entry(step.name, outcome, " ".join(step.command), code, round(time.monotonic() - started, 1), figures, tail)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM to the session of a step, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(8)
        except (subprocess.TimeoutExpired, ProcessLookupError):
            continue


def _tail(path: Path, lines: int) -> list[str]:
    return [line[:_LINE_CHARS] for line in path.read_text("utf-8", "replace").splitlines()[-lines:]]


def _write(out: Path, work: Path, entries: list[Entry]) -> None:
    written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    document = {"schema": SCHEMA, "written": written, "steps": [asdict(item) for item in entries]}
    temporary = out / ".measurements.json"
    temporary.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    temporary.replace(out / "measurements.json")
    for name in _RESULT_FILES:
        if (work / name).exists() and not (out / name).exists():
            shutil.copy2(work / name, out / name)


def _line(entry: Entry) -> str:
    """Return a readable line for a step."""
    figures = entry.figures
    values = {
        "tokens/s": figures.get("tokens_per_s"),
        "MFU": figures.get("mfu"),
        "GiB": figures.get("memory_peak_gib"),
        "largest micro batch": figures.get("largest_micro_batch"),
        "cause": figures.get("cause"),
        "exit": entry.exit_code or None,
        "kernel share": figures.get("busy_share"),
    }
    texts = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items() if value is not None)
    last_line = f"  {entry.tail[-1][:160]}" if entry.outcome != "done" and entry.tail else ""
    return f"{entry.name:34} {entry.outcome:9} {entry.seconds:6.1f} s  {'  '.join(texts)}{last_line}"


if __name__ == "__main__":
    sys.exit(main())
