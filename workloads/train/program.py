"""The main function of pretrain.py and posttrain.py: arguments, settings, start, and error messages."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from workloads.common.errors import WorkloadError
from workloads.common.files import replace_text
from workloads.common.process_group import own_rank, process_group, world_size
from workloads.common.torch_release import overlap_tensor_parallelism, require_pipeline
from workloads.train import flight_recorder
from workloads.train.attention import require_backend
from workloads.train.check_settings import check_settings, layout
from workloads.train.context import require_context
from workloads.train.data import open_samples
from workloads.train.float8 import require_float8
from workloads.train.load_settings import kind_name, known_settings, load_settings
from workloads.train.loop import Trainer
from workloads.train.parallel import require_peer_access
from workloads.train.stop import StopRequest
from workloads.train.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.common.process_group import Group
    from workloads.train.settings import Settings


def main(program: str, kind: str, about: str, argv: Sequence[str]) -> int:
    """Train; return the exit code.

    Args:
        program: Name of the program, for messages.
        kind: Kind of data: `text` or `examples`.
        about: Description, for the help.
        argv: The arguments.
    """
    options = _parser(program, about).parse_args(argv)
    stop, watchdog = StopRequest(), Watchdog(program=program, rank=own_rank())
    exit_code = 1
    try:
        settings = load_settings(options.config, options.settings)
        check_settings(settings, world_size())
        if options.print_settings:
            _print_settings(settings)
            return 0
        exit_code = _train(settings, kind, watchdog, stop)
    except WorkloadError as error:
        print(f"{program}: rank {own_rank()}: {error.what}\n  fix: {error.fix}", file=sys.stderr, flush=True)
        exit_code = error.exit_code
    finally:
        watchdog.leave(exit_code)
    return exit_code


def _print_settings(settings: Settings) -> None:
    try:
        print(json.dumps(asdict(settings), indent=1), flush=True)
    except BrokenPipeError:  # the reader, such as `head`, has ended; Python flushes again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _train(settings: Settings, kind: str, watchdog: Watchdog, stop: StopRequest) -> int:
    folder = Path(os.environ.get("RUN_DIR", "runs/train"))
    folder.mkdir(parents=True, exist_ok=True)
    if settings.watchdog.step_timeout_s:
        flight_recorder.enable()
        watchdog.start()
        watchdog.progress(0, limit_s=settings.watchdog.startup_timeout_s)
    samples = open_samples(settings, kind=kind)
    _choose_algorithms(settings)
    with process_group(device=settings.compute.device, timeout_s=settings.parallel.timeout_s, layout=layout(settings)) as group:
        _require_device(settings, group)
        if group.is_first:
            replace_text(folder / "settings.json", json.dumps(asdict(settings), indent=1) + "\n")
        return Trainer(settings, folder, group, watchdog, stop).run(samples)


def _require_device(settings: Settings, group: Group) -> None:
    """Check that the device can do what the settings ask for, before the model is built."""
    require_backend(settings, group.device)
    require_context(settings, group)
    require_float8(settings, group.device)
    if settings.parallel.pipeline > 1:
        require_pipeline(group.device)
    if settings.parallel.async_tensor:
        require_peer_access(group.device)
        overlap_tensor_parallelism(group.mesh["tensor"].get_group())


def _choose_algorithms(settings: Settings) -> None:
    """Set torch's process-wide options."""
    # TF32 for products of two fp32 matrices: https://pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32"
    torch.set_float32_matmul_precision("highest" if settings.compute.deterministic else "high")
    if settings.compute.deterministic:
        # cuBLAS requires this variable before its start: https://docs.nvidia.com/cuda/cublas/, "Results reproducibility"
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(mode=True)


def _parser(program: str, about: str) -> argparse.ArgumentParser:
    settings = "\n".join(
        f"  {known.key}  ({kind_name(known.kind)}, default {known.default!r})\n      {known.meaning}" for known in known_settings()
    )
    parser = argparse.ArgumentParser(
        prog=program, description=about, epilog=f"settings:\n{settings}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="YAML or JSON file, or a preset's name; a later one overrides an earlier one",
    )
    parser.add_argument("--print-settings", action="store_true", help="print the resolved settings as JSON and exit")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="override files, for example train.steps=100")
    return parser
