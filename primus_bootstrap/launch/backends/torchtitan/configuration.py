"""The settings of a run as TorchTitan names them, and its configuration file. Source: torchtitan/config/job_config.py of 0.2.2."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.launch.backends.torchtitan import named_shape
from primus_bootstrap.launch.recipes.recipe import DDP, DISTRIBUTED_OPTIMIZER, FULL, SELECTIVE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from primus_bootstrap.launch.backends.contract import Run
    from primus_bootstrap.launch.recipes.recipe import Recipe

_OWN_DATA = "primus"  # no data set of TorchTitan: workloads/backends/torchtitan/trainer.py replaces it by the one of data.source
_PRECISION: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"training.mixed_precision_param": "float32"},
    "bf16": {},
    "fp8": {"model.converters": ["quantize.linear.float8"]},
    "mxfp8": {"model.converters": ["quantize.linear.mx"]},
}


def values(run: Run) -> dict[str, Any]:
    """Return every setting of a run by TorchTitan's names; those of the recipe and then those of the user replace the others.

    Raises:
        PlanError: TorchTitan cannot train this.
    """
    return {
        "job.dump_folder": str(run.run_dir),
        "job.description": run.recipe.name or run.shape.name,
        "model.name": named_shape.NAME,
        "model.flavor": named_shape.FLAVOR,
        "metrics.log_freq": 1,
        "metrics.disable_color_printing": True,
        **_layout(run.recipe),
        **_training(run.settings, run.recipe),
        **_optimizer(run.settings),
        **_checkpoints(run.settings, run.run_dir),
        **run.recipe.keys,
        **run.keys,
    }


def toml(chosen: Mapping[str, Any]) -> str:
    """Return the configuration file of these settings. A setting without a value is left out."""
    sections: dict[str, list[str]] = {}
    for name, value in chosen.items():
        if value is not None:
            section, _, key = name.rpartition(".")
            sections.setdefault(section, []).append(f"{key} = {_text(value)}")
    return "\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sorted(sections.items()))


def _text(value: Any) -> str:
    """Return a value in TOML's notation. Its strings are those of JSON; its numbers can be infinite."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return json.dumps(value, ensure_ascii=False)


def _layout(recipe: Recipe) -> dict[str, Any]:
    layout = recipe.layout
    if layout.data == DISTRIBUTED_OPTIMIZER:
        what = "torchtitan does not shard the optimizer's state alone (parallel.strategy=distributed_optimizer)"
        raise PlanError(what, fix="set parallel.strategy=fsdp, or parallel.strategy=ddp")
    shards = 1 if layout.data == DDP else (layout.shards or layout.replicas)
    found: dict[str, Any] = {
        "parallelism.data_parallel_replicate_degree": layout.replicas // shards,
        "parallelism.data_parallel_shard_degree": shards,
        "parallelism.tensor_parallel_degree": layout.tensor,
        "parallelism.pipeline_parallel_degree": layout.pipeline,
        "parallelism.context_parallel_degree": layout.context,
        "parallelism.expert_parallel_degree": layout.expert,
    }
    if layout.pipeline > 1:
        found["parallelism.pipeline_parallel_microbatch_size"] = recipe.batch.micro
        if layout.virtual_pipeline > 1:
            found["parallelism.pipeline_parallel_schedule"] = "Interleaved1F1B"
    return found


def _training(settings: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    if recipe.precision not in _PRECISION:
        raise PlanError(f"torchtitan does not train in {recipe.precision}", fix=f"set compute.precision to one of: {', '.join(_PRECISION)}")
    batch, seconds = recipe.batch, math.ceil(settings["parallel.timeout_s"])
    return {
        "training.dataset": _OWN_DATA,
        "training.steps": settings["train.steps"],
        "training.seq_len": batch.length,
        # A pipeline divides the batch of a rank into micro-batches.
        "training.local_batch_size": batch.micro * (recipe.micro_batches if recipe.layout.pipeline > 1 else 1),
        "training.global_batch_size": batch.all,
        "training.max_norm": settings["train.clip_norm"] or math.inf,
        "debug.seed": settings["train.seed"],
        "comm.init_timeout_seconds": seconds,
        "comm.train_timeout_seconds": seconds,
        **_PRECISION[recipe.precision],
        **_recompute(recipe),
    }


def _recompute(recipe: Recipe) -> dict[str, Any]:
    if recipe.recompute.kind == FULL:
        return {"activation_checkpoint.mode": "full"}
    if recipe.recompute.kind == SELECTIVE:
        return {"activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "op"}
    return {"activation_checkpoint.mode": "none"}


def _optimizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "optimizer.name": "AdamW",
        "optimizer.lr": settings["optimizer.lr"],
        "optimizer.beta1": settings["optimizer.beta1"],
        "optimizer.beta2": settings["optimizer.beta2"],
        "optimizer.eps": settings["optimizer.eps"],
        "optimizer.weight_decay": settings["optimizer.weight_decay"],
        "lr_scheduler.warmup_steps": settings["optimizer.warmup_steps"],
        "lr_scheduler.total_steps": settings["optimizer.decay_steps"] or settings["train.steps"],
        "lr_scheduler.decay_type": "cosine",
        "lr_scheduler.min_lr_factor": settings["optimizer.min_lr_ratio"],
    }


def _checkpoints(settings: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """Return where checkpoints are written, and which other run's checkpoint a run without one starts with.

    The program removes old checkpoints itself, and writes the last one with the optimizer's state, so that more steps can follow.
    """
    every, resume = settings["checkpoint.every_steps"], settings["checkpoint.resume"]
    writes, other = bool(every or settings["checkpoint.at_end"]), "" if resume in ("auto", "never") else resume
    initial = other or settings["checkpoint.start_from"]
    found = {"checkpoint.enable": writes or bool(initial)}
    if not found["checkpoint.enable"]:
        return found
    return {
        **found,
        "checkpoint.folder": settings["checkpoint.folder"] or str(run_dir / "checkpoints"),
        "checkpoint.interval": every or settings["train.steps"],
        "checkpoint.load_only": not writes,
        "checkpoint.async_mode": "async" if settings["checkpoint.asynchronous"] else "disabled",
        "checkpoint.initial_load_path": initial or None,
        "checkpoint.initial_load_model_only": not other,
        "checkpoint.last_save_model_only": False,
        "checkpoint.keep_latest_k": 0,
    }
