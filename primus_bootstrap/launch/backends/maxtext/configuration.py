"""The settings of a run as MaxText names them. Source: maxtext/configs/base.yml and types.py of 0.2.5."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.backends.maxtext import mesh
from primus_bootstrap.launch.recipes.recipe import DISTRIBUTED_OPTIMIZER, FULL, SELECTIVE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.backends.contract import Run
    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

_NANOO_GPUS = ("MI300X", "MI325X")  # their FP8 encoding: https://rocm.docs.amd.com/en/latest/reference/precision-support.html
_NEVER = 10**9  # steps between checkpoints that the program writes itself
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS_OF_YAML = frozenset({"true", "false", "yes", "no", "on", "off", "null", "none", "y", "n"})
# Settings that the launcher computes from others, and what to set instead.
_COMPUTED = {
    "run_name": "pass --output DIR to primus-cli",
    "base_output_directory": "pass --output DIR to primus-cli",
    "per_device_batch_size": "set train.micro_batch, the sequences of a data-parallel rank",
    "gradient_accumulation_steps": "set train.global_batch, the sequences of a step",
    "enable_checkpointing": "set checkpoint.every_steps=0 and checkpoint.at_end=false",
    "skip_jax_distributed_system": "remove it: the launcher connects the nodes",
}


def values(run: Run) -> dict[str, Any]:
    """Return every setting of a run by MaxText's names; those of the recipe and then those of the user replace the others.

    Raises:
        PrimusError: MaxText cannot train this, or the user sets what the launcher computes.
    """
    for name in run.keys:
        if name in _COMPUTED:
            raise UsageError(f"maxtext.{name} cannot be set", fix=_COMPUTED[name])
    named = {**run.recipe.keys, **run.keys}.get("model_name", "default") != "default"
    return {
        "base_output_directory": str(run.run_dir.parent),
        "run_name": run.run_dir.name,
        "hardware": "gpu",
        "skip_jax_distributed_system": True,
        "jax_cache_dir": str(run.run_dir / "compilation-cache"),
        "enable_tensorboard": False,
        "log_config": False,
        **({} if named else _model(run.shape)),
        **mesh.axes(run.recipe),
        **_training(run.settings, run.recipe),
        **_optimizer(run.settings),
        **_data(run.settings),
        **_checkpoints(run.settings),
        **mesh.without_axes(run.recipe.keys),
        **run.keys,
    }


def words(chosen: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command line of these settings. A setting without a value is left out."""
    return tuple(f"{name}={_text(value)}" for name, value in chosen.items() if value is not None)


def _text(value: Any) -> str:
    """Return a value in the notation of YAML, which MaxText reads."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML:
        return value
    return json.dumps(value, ensure_ascii=False)


def _model(shape: ModelShape) -> dict[str, Any]:
    """Return the shape of a model that MaxText does not know by name: a Llama model, or one with experts as Mixtral.

    Raises:
        PlanError: The model has parts that these do not have.
    """
    missing = _missing(shape)
    if missing:
        fix = "set maxtext.model_name to a model of MaxText, or choose another backend"
        raise PlanError(f"maxtext has no model {shape.name} by name, and its Llama models have no {missing}", fix=fix)
    found: dict[str, Any] = {
        "decoder_block": "llama2",
        "base_num_decoder_layers": shape.layers,
        "base_emb_dim": shape.width,
        "base_num_query_heads": shape.heads,
        "base_num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "base_mlp_dim": shape.ffn_width,
        "mlp_activations": ["silu", "linear"],
        "vocab_size": shape.vocabulary,
        "logits_via_embedding": shape.tied,
        "normalization_layer_epsilon": shape.norm_eps,
        "rope_max_timescale": int(shape.rope_theta),
        "enable_dropout": False,
    }
    if shape.experts:
        experts = {"num_experts": shape.experts.count, "num_experts_per_tok": shape.experts.per_token}
        found.update(experts, decoder_block="mixtral", base_mlp_dim=shape.experts.ffn_width, base_moe_mlp_dim=shape.experts.ffn_width)
    return found


def _missing(shape: ModelShape) -> str:
    """Return the first part of a model that MaxText's Llama and Mixtral do not have; empty if there is none."""
    experts = shape.experts
    parts = {
        "latent attention": shape.latent is not None,
        "biases": shape.qkv_bias or shape.output_bias or bool(experts and (experts.bias or experts.router_bias)),
        "norms of queries and keys": shape.qk_norm,
        "attention sinks": shape.sinks,
        "local attention": bool(shape.window and shape.window_every),
        "shared experts": bool(experts and experts.shared_width),
        "dense layers between those with experts": bool(experts and (experts.dense_layers or experts.every > 1)),
    }
    return next((name for name, present in parts.items() if present), "")


def _training(settings: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    layout, batch = recipe.layout, recipe.batch
    per_device = batch.micro / (layout.tensor * layout.context)
    return {
        "steps": settings["train.steps"],
        "max_target_length": batch.length,
        "per_device_batch_size": int(per_device) if per_device.is_integer() else per_device,
        "gradient_accumulation_steps": recipe.micro_batches,
        "gradient_clipping_threshold": settings["train.clip_norm"],
        "init_weights_seed": settings["train.seed"],
        "data_shuffle_seed": settings["train.seed"],
        "shard_optimizer_over_data": layout.data == DISTRIBUTED_OPTIMIZER,
        "remat_policy": {FULL: "full", SELECTIVE: "minimal_with_context"}.get(recipe.recompute.kind, "none"),
        **_precision(recipe),
    }


def _precision(recipe: Recipe) -> dict[str, Any]:
    if recipe.precision == "fp32":
        return {"dtype": "float32", "weight_dtype": "float32"}
    if recipe.precision == "bf16":
        return {"dtype": "bfloat16"}
    if recipe.precision == "fp8":
        return {"dtype": "bfloat16", "quantization": "nanoo_fp8" if recipe.gpu in _NANOO_GPUS else "fp8"}
    raise PlanError(f"maxtext does not train in {recipe.precision}", fix="set compute.precision to one of: fp32, bf16, fp8")


def _optimizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    steps = settings["optimizer.decay_steps"] or settings["train.steps"]
    if steps < settings["train.steps"]:
        what = "optimizer.decay_steps is less than train.steps, and maxtext trains the other steps with a learning rate of 0"
        raise UsageError(what, fix="remove optimizer.decay_steps, or set it to train.steps or more")
    return {
        "opt_type": "adamw",
        "learning_rate": settings["optimizer.lr"],
        "adam_b1": settings["optimizer.beta1"],
        "adam_b2": settings["optimizer.beta2"],
        "adam_eps": settings["optimizer.eps"],
        "adam_weight_decay": settings["optimizer.weight_decay"],
        "learning_rate_schedule_steps": steps,
        "warmup_steps_fraction": min(1.0, settings["optimizer.warmup_steps"] / steps),
        "learning_rate_final_fraction": settings["optimizer.min_lr_ratio"],
    }


def _data(settings: Mapping[str, Any]) -> dict[str, Any]:
    if settings["data.source"] != "synthetic":
        fix = "remove data.source, and set maxtext.dataset_type=grain and maxtext.grain_train_files=FILES, or another data set of MaxText"
        raise UsageError(f"data.source={settings['data.source']}: maxtext reads its own data sets only", fix=fix)
    return {"dataset_type": "synthetic", "packing": False}


def _checkpoints(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return when checkpoints are written. The program writes the last one and the one after SIGTERM, and removes old ones."""
    every = settings["checkpoint.every_steps"]
    return {
        "enable_checkpointing": bool(every or settings["checkpoint.at_end"]),
        "checkpoint_period": every or _NEVER,
        "async_checkpointing": settings["checkpoint.asynchronous"],
        "save_checkpoint_on_start": False,
        "save_checkpoint_on_completion": False,
    }
