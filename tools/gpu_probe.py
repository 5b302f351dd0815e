#!/usr/bin/env python3
"""The measuring processes of tools/gpu_measure.py. Needs torch.

python tools/gpu_probe.py describe|bench|memory|trace|torchtitan --json FILE [options]
python tools/gpu_probe.py index-out-of-range|illegal-access|gpu-hang      inject a failure
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:
    # For a program started by path, Python adds its folder instead of the root.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from primus_bootstrap.bench.judging.floors import load_floors
from primus_bootstrap.bench.judging.verdicts import evaluate_results
from primus_bootstrap.bench.quarantine.policy import load_policy
from primus_bootstrap.bench.results.history import make_history
from primus_bootstrap.bench.results.reader import read_results
from workloads.common.device import GIB, compute_units, device_name, peak_memory_gib, synchronise
from workloads.common.process_group import choose_device, process_group
from workloads.common.results import versions
from workloads.train import fault_injection, loop, pretrain
from workloads.train.data import Batch
from workloads.train.load_settings import load_settings
from workloads.train.parallel import build_model
from workloads.train.step import apply_gradients, compute_gradients, make_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_BENCHES = ("gemm", "memory_bandwidth", "attention", "launch_overhead", "host_device")
_TRACED_STEPS = 3
_TRACE_WAIT, _TRACE_WARMUP = 3, 1
_TRACE_BYTES = 5 * 10**6
_STEPS = 10
_WARMUP_STEPS = 3
_HANG_CYCLES = 10**11  # about a minute


def describe(_arguments: Sequence[str]) -> dict[str, Any]:
    """Return torch's information about its versions and the device."""
    device = choose_device("auto")
    found: dict[str, Any] = {"versions": versions(), "device": device_name(device), "arch_list": torch.cuda.get_arch_list()}
    if device.type == "cuda":
        properties: Any = torch.cuda.get_device_properties(device)
        free, total = torch.cuda.mem_get_info(device)
        found |= {
            "capability": ".".join(str(number) for number in torch.cuda.get_device_capability(device)),
            "compute_units": compute_units(device),
            "memory_gib": round(properties.total_memory / GIB, 2),
            "free_gib": round(free / GIB, 2),
            "visible_gib": round(total / GIB, 2),
            "l2_mib": properties.L2_cache_size / 2**20,
            "pci": f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}",
            "uuid": str(properties.uuid),
            "nccl": ".".join(str(number) for number in torch.cuda.nccl.version()),
            "cudnn": torch.backends.cudnn.version(),
        }
    return found


def bench(arguments: Sequence[str]) -> dict[str, Any]:
    """Run the benchmarks of the tier `standard` that need one GPU, and compare each round with the floors of its model."""
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    rounds = []
    for number in range(options.rounds):
        folder = Path(f"round-{number + 1}")
        folder.mkdir(exist_ok=True)
        os.environ["RUN_DIR"] = str(folder)
        codes = {name: _one_bench(name, tiny=options.tiny) for name in _BENCHES}
        rounds.append({"exit_codes": codes, **_evaluated(folder)})
    return {"rounds": rounds, "spread": _spread([item["series"] for item in rounds])}


def _one_bench(name: str, *, tiny: bool) -> int:
    steps = load_policy().tiers["standard"].steps
    arguments = next(list(step.arguments()) for step in steps if step.run == name and step.over == "host")
    small = {"attention": ["--length", "64"], "memory_bandwidth": ["--array-mib", "8"]}.get(name, []) if tiny else []
    started = time.monotonic()
    code = int(import_module(f"workloads.bench.{name}").main([*arguments, *small]))
    print(f"{name}: exit {code}, {time.monotonic() - started:.1f} s", flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    return code


def _evaluated(folder: Path) -> dict[str, Any]:
    parsed = read_results(folder / "results.jsonl")
    evaluation = evaluate_results(parsed.results, floors=load_floors(), history=make_history([]), others=parsed.problems)
    floors = {value.key.series.text(): value.floor for value in evaluation.values}
    series = [
        {
            "series": f"{item.series.benchmark} {item.series.text()}",
            "value": item.value,
            "unit": item.unit,
            "floor": floors.get(item.series.text()),
            "correct": item.correct,
            "error": item.error,
            "noise_percent": _noise(item.samples),
        }
        for item in parsed.results
    ]
    verdicts = [{"check": item.check, "verdict": item.verdict, "found": item.found, "reason": item.reason} for item in evaluation.verdicts]
    return {"series": series, "verdicts": verdicts, "hosts": dict(evaluation.hosts)}


def _noise(samples: Sequence[float]) -> float | None:
    """Return the standard deviation of samples in percent of their mean."""
    return round(100 * statistics.stdev(samples) / statistics.fmean(samples), 3) if len(samples) > 1 else None


def _spread(rounds: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Return by how many percent the values of a series differ between rounds."""
    values: dict[str, list[float]] = defaultdict(list)
    for series in rounds:
        for item in series:
            if item["value"]:
                values[item["series"]].append(item["value"])
    return {name: round(100 * (max(found) / min(found) - 1), 3) for name, found in values.items() if len(found) > 1}


def memory(arguments: Sequence[str]) -> dict[str, Any]:
    """Find the largest micro-batch that fits: train two steps of each size until the memory is full."""
    parser = argparse.ArgumentParser(prog="memory")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args(arguments)
    settings = load_settings(options.config, options.settings)
    torch.set_float32_matmul_precision("high")
    attempts: list[dict[str, Any]] = []
    with process_group(device=settings.compute.device, timeout_s=300) as group:
        model = build_model(settings, group)
        optimizer = make_optimizer(model, settings, group.device)
        found = {"before_step_gib": peak_memory_gib(group.device)}
        for size in _sizes(options.most):
            try:
                seconds = []
                for _ in range(2):
                    synchronise(group.device)
                    started = time.perf_counter()
                    gradients = _gradients(model, settings, group, size)
                    apply_gradients(model, optimizer, gradients, rate=1e-5, clip_norm=1.0)
                    synchronise(group.device)
                    seconds.append(time.perf_counter() - started)
            except torch.OutOfMemoryError as error:
                attempts.append({"micro_batch": size, "fits": False, "message": str(error).splitlines()[0][:300]})
                break
            tokens = size * settings.train.sequence_length
            attempts.append(
                {
                    "micro_batch": size,
                    "fits": True,
                    "peak_gib": round(peak_memory_gib(group.device), 2),
                    "reserved_gib": round(torch.cuda.max_memory_reserved() / GIB, 2) if group.device.type == "cuda" else None,
                    "tokens_per_s": round(tokens / seconds[-1], 1),
                }
            )
            if group.device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
    fitting = [item["micro_batch"] for item in attempts if item["fits"]]
    return {**found, "recompute": settings.compute.recompute, "largest_micro_batch": max(fitting, default=0), "tried": attempts}


def _sizes(most: int) -> list[int]:
    """Return the sizes to try, up to a maximum."""
    return [size for size in (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64) if size <= most]


def _gradients(model: Any, settings: Any, group: Any, size: int) -> Any:
    tokens = torch.randint(settings.model.vocabulary, (size, settings.train.sequence_length))
    return compute_gradients(model, [Batch(tokens, tokens)], settings, group)


def trace(arguments: Sequence[str]) -> dict[str, Any]:
    """Profile three training steps; return their kernel times, and write the trace with `--trace FILE`."""
    parser = argparse.ArgumentParser(prog="trace", add_help=False)
    parser.add_argument("--trace", type=Path)
    options, settings = parser.parse_known_args(arguments)
    os.environ["RUN_DIR"] = "run"
    saved: list[Path] = []
    wall_s: list[float] = []

    def save(profiler: Any) -> None:
        saved.append(Path("trace.json"))
        profiler.export_chrome_trace(str(saved[0]))

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    plan = schedule(wait=_TRACE_WAIT, warmup=_TRACE_WARMUP, active=_TRACED_STEPS, repeat=1)
    profiler = profile(activities=activities, schedule=plan, on_trace_ready=save)
    train = loop.Trainer._train  # noqa: SLF001 - wrapped for each step

    def traced(trainer: Any, batches: Any) -> Any:
        started = time.perf_counter()
        result = train(trainer, batches)
        wall_s.append(time.perf_counter() - started)
        profiler.step()
        return result

    loop.Trainer._train = traced  # type: ignore[method-assign]  # noqa: SLF001
    steps = _TRACE_WAIT + _TRACE_WARMUP + _TRACED_STEPS + 1
    with profiler:
        code = pretrain.pretrain([*settings, f"train.steps={steps}"])
    begin = _TRACE_WAIT + _TRACE_WARMUP
    found = {"exit_code": code, "traced_step_s": wall_s[begin : begin + _TRACED_STEPS], "other_step_s": wall_s[1:_TRACE_WAIT]}
    if not saved:
        return found
    text = saved[0].read_bytes()
    found |= summary(json.loads(text)["traceEvents"], _TRACED_STEPS) | {"trace_bytes": len(text)}
    if options.trace:
        packed = gzip.compress(text, 6)
        found["packed_bytes"] = len(packed)
        if len(packed) <= _TRACE_BYTES:
            options.trace.write_bytes(packed)
    return found


def summary(events: Sequence[Mapping[str, Any]], steps: int) -> dict[str, Any]:
    """Return kernel times in ms per step, in total and by name, and the share of time in which at least one kernel ran."""
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and event.get("ph") == "X"]
    by_name: dict[str, list[float]] = defaultdict(list)
    for event in kernels:
        by_name[str(event["name"])].append(float(event["dur"]))
    total_us = sum(sum(found) for found in by_name.values())
    largest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:25]
    spans = sorted((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in kernels)
    busy_us, until = 0.0, float("-inf")
    for start, end in spans:
        busy_us += max(0.0, end - max(start, until))
        until = max(until, end)
    wall_us = until - spans[0][0] if spans else 0.0
    return {
        "kernels": len(kernels) / steps,
        "kernel_ms": total_us / steps / 1000,
        "busy_ms": busy_us / steps / 1000,
        "wall_ms": wall_us / steps / 1000,
        "busy_share": busy_us / wall_us if wall_us else None,
        "largest": [
            {"name": name[:140], "count": len(found) / steps, "ms": sum(found) / steps / 1000, "share": sum(found) / total_us}
            for name, found in largest
        ],
    }


def torchtitan(arguments: Sequence[str]) -> dict[str, Any]:
    """Train the 1B model with torchtitan's trainer on one GPU, with random tokens and no files."""
    import torchtitan  # noqa: PLC0415 - only this probe needs it
    from torchtitan.config import JobConfig  # noqa: PLC0415 - only this probe needs it
    from torchtitan.models.llama3 import get_train_spec  # noqa: PLC0415 - only this probe needs it
    from torchtitan.models.llama3.model.args import TransformerModelArgs  # noqa: PLC0415 - only this probe needs it
    from torchtitan.protocols.train_spec import register_train_spec  # noqa: PLC0415 - only this probe needs it
    from torchtitan.tools.logging import init_logger  # noqa: PLC0415 - only this probe needs it
    from torchtitan.train import Trainer  # noqa: PLC0415 - only this probe needs it

    parser = argparse.ArgumentParser(prog="torchtitan")
    parser.add_argument("--recompute", default="none", choices=("none", "selective", "full"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(arguments)
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    os.environ.update({name: os.environ.get(name, value) for name, value in names.items()})
    init_logger()
    # The shape of workloads/presets/llama-3.2-1b.yaml; 1.5 and 1024 result in an FFN width of 8192.
    shape = TransformerModelArgs(
        dim=2048, n_layers=16, n_heads=32, n_kv_heads=8, vocab_size=128256, ffn_dim_multiplier=1.5, multiple_of=1024, rope_theta=500000
    )
    length, local_batch, global_batch = 4096, 2, 8
    if options.tiny:
        shape, length = replace(shape, dim=64, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=512, multiple_of=64), 64
    config = JobConfig()
    config.model.name, config.model.flavor = "measured", "1b"
    config.job.dump_folder = "titan"
    config.training.seq_len, config.training.local_batch_size, config.training.global_batch_size = length, local_batch, global_batch
    config.training.steps = _STEPS
    config.activation_checkpoint.mode = options.recompute
    config.activation_checkpoint.selective_ac_option = "op"
    config.compile.enable = options.compile
    config.lr_scheduler.warmup_steps = 2
    config.metrics.log_freq = 1000  # logging resets the peak memory
    loader = _RandomTokens(shape.vocab_size, length, local_batch)
    spec = replace(get_train_spec(), model_args={"1b": shape}, build_tokenizer_fn=None, build_dataloader_fn=lambda **_: loader)
    register_train_spec("measured", spec)
    trainer = Trainer(config)
    times: list[float] = []
    one_step = trainer.train_step

    def timed(iterator: Any) -> None:
        started = time.perf_counter()
        one_step(iterator)
        synchronise(trainer.device)
        times.append(time.perf_counter() - started)

    trainer.train_step = timed
    trainer.train()
    parameters = sum(parameter.numel() for part in trainer.model_parts for parameter in part.parameters())
    peak_gib = peak_memory_gib(trainer.device)
    trainer.close()
    step_s = statistics.median(times[_WARMUP_STEPS:])
    return {
        "torchtitan": torchtitan.__version__,
        "parameters": parameters,
        "recompute": options.recompute,
        "compile": options.compile,
        "step_times_s": [round(value, 4) for value in times],
        "tokens_per_s": global_batch * length / step_s,
        "memory_peak_gib": peak_gib,
    }


class _RandomTokens:
    """A data loader for torchtitan that repeats one batch of random tokens."""

    def __init__(self, vocabulary: int, length: int, batch: int) -> None:
        """Create the tokens."""
        self._tokens = torch.randint(vocabulary, (batch, length + 1))

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield the same batch forever."""
        while True:
            yield {"input": self._tokens[:, :-1].clone()}, self._tokens[:, 1:].clone()

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, _state: Mapping[str, Any]) -> None:
        """Ignore the state."""


def index_out_of_range(_arguments: Sequence[str]) -> dict[str, Any]:
    """Look up a token outside the vocabulary, like a wrong tokenizer."""
    device = choose_device("auto")
    table = torch.nn.Embedding(16, 8).to(device)
    print(float(table(torch.tensor([3, 99], device=device)).sum()))
    return {}


def illegal_access(_arguments: Sequence[str]) -> dict[str, Any]:
    """Write to an unmapped address, like a wrong kernel."""
    device = torch.device("cuda", 0)
    values = torch.ones(1024, device=device)
    far = torch.empty(0, device=device)
    storage = torch._C._construct_storage_from_data_pointer(values.data_ptr() + 2**45, device, 4096)  # noqa: SLF001 - an intentionally wrong pointer
    far.set_(storage, 0, (1024,), (1,))
    far.fill_(1.0)
    torch.cuda.synchronize()
    return {}


def gpu_hang(arguments: Sequence[str]) -> dict[str, Any]:
    """Train with a kernel before the third step that exceeds the watchdog's time limit, so that the watchdog stops the rank."""
    before = fault_injection.FaultInjector.before

    def hang(self: Any, step: int) -> None:
        before(self, step)
        if step == 3 and torch.cuda.is_available():
            torch.cuda._sleep(_HANG_CYCLES)  # noqa: SLF001 - torch has no public kernel that waits

    fault_injection.FaultInjector.before = hang  # type: ignore[method-assign]
    sys.exit(pretrain.pretrain([*arguments, "watchdog.step_timeout_s=8", "watchdog.startup_timeout_s=60"]))


PROBES: dict[str, Callable[[Sequence[str]], dict[str, Any]]] = {
    "describe": describe,
    "bench": bench,
    "memory": memory,
    "trace": trace,
    "torchtitan": torchtitan,
    "index-out-of-range": index_out_of_range,
    "illegal-access": illegal_access,
    "gpu-hang": gpu_hang,
}


def main(arguments: Sequence[str]) -> int:
    """Run one probe; return the exit code."""
    parser = argparse.ArgumentParser(prog="gpu_probe", add_help=False, allow_abbrev=False)
    parser.add_argument("probe", choices=tuple(PROBES))
    parser.add_argument("--json", type=Path)
    options, probe_arguments = parser.parse_known_args(arguments)
    result = PROBES[options.probe](probe_arguments)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
