"""The settings of a run as Megatron-LM names them. Names and meanings: megatron/training/arguments.py of megatron-core 0.19.2."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.recipes.recipe import DISTRIBUTED_OPTIMIZER, FSDP, FULL, SELECTIVE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from primus_bootstrap.launch.backends.contract import Key, Run
    from primus_bootstrap.launch.recipes.model_shape import Experts, ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe

_NEVER = 10**9  # steps between evaluations, of which there are none
_PRECISION: Mapping[str, Mapping[str, Any]] = {
    "fp32": {},
    "bf16": {"bf16": True},
    "fp8": {"bf16": True, "fp8": "hybrid"},
    "mxfp8": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
}


def values(run: Run) -> dict[str, Any]:
    """Return every setting of a run by Megatron's names; those of the recipe and then those of the user replace the others.

    Raises:
        PrimusError: Megatron-LM cannot train this.
    """
    return {
        **_model(run.shape, run.recipe.batch.length),
        **_layout(run.recipe),
        **_training(run.settings, run.recipe),
        **_optimizer(run.settings),
        **_data(run.settings, run.shape),
        **_checkpoints(run.settings, run.run_dir),
        **run.recipe.keys,
        **run.keys,
    }


def words(chosen: Mapping[str, Any], known: Mapping[str, Key]) -> tuple[str, ...]:
    """Return the command line of these settings.

    Raises:
        UsageError: A setting cannot be switched off.
    """
    return tuple(word for name, value in chosen.items() for word in _words(known[name], value))


def _words(key: Key, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if key.kind not in ("bool", "flag"):
        return (key.option, *(str(item) for item in value)) if isinstance(value, (list, tuple)) else (key.option, str(value))
    if not value and not key.off and key.default:
        raise UsageError(f"megatron.{key.name} cannot be switched off", fix="remove it")
    option = key.option if value else key.off
    return (option,) if option and value != bool(key.default) else ()


def _model(shape: ModelShape, length: int) -> dict[str, Any]:
    found = {
        "num_layers": shape.layers,
        "hidden_size": shape.width,
        "ffn_hidden_size": shape.ffn_width,
        "num_attention_heads": shape.heads,
        "group_query_attention": shape.kv_heads != shape.heads,
        "num_query_groups": shape.kv_heads if shape.kv_heads != shape.heads else None,
        "kv_channels": shape.head_size,
        "max_position_embeddings": max(shape.context, length),
        "swiglu": True,
        "normalization": "RMSNorm",
        "layernorm_epsilon": shape.norm_eps,
        "position_embedding_type": "rope",
        "rotary_base": int(shape.rope_theta),
        "add_bias_linear": shape.output_bias,
        "add_qkv_bias": shape.qkv_bias,
        "qk_layernorm": shape.qk_norm,
        "untie_embeddings_and_output_weights": not shape.tied,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }
    if shape.sinks:
        found["softmax_type"] = "learnable"
    if shape.window and shape.window_every:
        found.update(window_size=f"{shape.window - 1},0", window_attn_skip_freq=shape.window_every + 1)
    return {**found, **_latent(shape), **(_experts(shape, shape.experts) if shape.experts else {})}


def _latent(shape: ModelShape) -> dict[str, Any]:
    latent = shape.latent
    if latent is None:
        return {}
    return {
        "multi_latent_attention": True,
        "kv_lora_rank": latent.kv_rank,
        "q_lora_rank": latent.query_rank or None,
        "qk_head_dim": latent.nope_size,
        "qk_pos_emb_head_dim": latent.rope_size,
        "v_head_dim": latent.value_size,
        "group_query_attention": False,
        "num_query_groups": None,
        "kv_channels": None,
        "qk_layernorm": True,
    }


def _experts(shape: ModelShape, experts: Experts) -> dict[str, Any]:
    found = {
        "num_experts": experts.count,
        "moe_router_topk": experts.per_token,
        "moe_ffn_hidden_size": experts.ffn_width,
        "moe_shared_expert_intermediate_size": experts.shared_width or None,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.01,
    }
    if experts.dense_layers or experts.every > 1:
        pattern = [int(shape.has_experts(layer)) for layer in range(shape.layers)]
        found["moe_layer_freq"] = "(" + "+".join(f"[{value}]" for value in pattern) + ")"
    return found


def _layout(recipe: Recipe) -> dict[str, Any]:
    layout = recipe.layout
    fsdp = layout.data == FSDP
    return {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        "num_virtual_stages_per_pipeline_rank": _virtual_stages(recipe),
        "context_parallel_size": layout.context,
        "expert_model_parallel_size": layout.expert,
        "sequence_parallel": layout.sequence_parallel and layout.tensor > 1,
        "use_distributed_optimizer": layout.data == DISTRIBUTED_OPTIMIZER,
        "use_torch_fsdp2": fsdp,
        "gradient_accumulation_fusion": False if fsdp else None,  # not supported with FSDP2
        "ckpt_format": "torch_dist",
    }


def _virtual_stages(recipe: Recipe) -> int | None:
    """Return the chunks per stage; None if there is one, or if a key of the recipe lays the pipeline out."""
    if recipe.layout.virtual_pipeline == 1 or "pipeline_model_parallel_layout" in recipe.keys:
        return None
    return recipe.layout.virtual_pipeline


def _training(settings: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    if recipe.precision not in _PRECISION:
        fix = f"set compute.precision to one of: {', '.join(_PRECISION)}"
        raise PlanError(f"megatron does not train in {recipe.precision}", fix=fix)
    return {
        "train_iters": settings["train.steps"],
        "seq_length": recipe.batch.length,
        "micro_batch_size": recipe.batch.micro,
        "global_batch_size": recipe.batch.all,
        "clip_grad": settings["train.clip_norm"],
        "seed": settings["train.seed"],
        "log_interval": 1,
        "log_throughput": True,
        "eval_iters": 0,
        "eval_interval": _NEVER,
        "exit_signal_handler": True,
        # Without it, a NaN ends the run by an exit code that asks for a restart on another GPU, and the watcher would not know it.
        "rerun_mode": "disabled",
        "distributed_timeout_minutes": math.ceil(settings["parallel.timeout_s"] / 60),
        **_PRECISION[recipe.precision],
        **_recompute(recipe),
    }


def _recompute(recipe: Recipe) -> dict[str, Any]:
    kind, layers = recipe.recompute.kind, recipe.recompute.layers
    if kind == SELECTIVE:
        return {"recompute_granularity": "selective"}
    if kind != FULL:
        return {}
    if layers:  # the first layers of each stage
        return {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": layers}
    return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def _optimizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    rate = settings["optimizer.lr"]
    return {
        "optimizer": "adam",
        "lr": rate,
        "min_lr": rate * settings["optimizer.min_lr_ratio"],
        "lr_decay_style": "cosine",
        "lr_warmup_iters": settings["optimizer.warmup_steps"],
        "lr_decay_iters": settings["optimizer.decay_steps"] or settings["train.steps"],
        "weight_decay": settings["optimizer.weight_decay"],
        "adam_beta1": settings["optimizer.beta1"],
        "adam_beta2": settings["optimizer.beta2"],
        "adam_eps": settings["optimizer.eps"],
        "override_opt_param_scheduler": True,  # a resumed run uses its own settings, such as more steps, and not those of the checkpoint
    }


def _data(settings: Mapping[str, Any], shape: ModelShape) -> dict[str, Any]:
    """Return the data of a run. With the null tokenizer, the data are token numbers."""
    synthetic = settings["data.source"] == "synthetic"
    return {
        "mock_data": synthetic,
        "data_path": None if synthetic else list(settings["data.files"]),
        "tokenizer_type": "NullTokenizer",
        "vocab_size": shape.vocabulary,
        "split": "100,0,0",
    }


def _checkpoints(settings: Mapping[str, Any], run_dir: Path) -> dict[str, Any]:
    """Return where checkpoints are written. The program adds --load itself: it depends on what exists when the run starts."""
    every, at_end = settings["checkpoint.every_steps"], settings["checkpoint.at_end"]
    if not every and not at_end:
        return {}
    folder = settings["checkpoint.folder"] or str(run_dir / "checkpoints")
    found = {"save": folder, "save_interval": every or settings["train.steps"]}
    if settings["checkpoint.asynchronous"]:
        # By Megatron's own writer: its default, nvrx, needs NVIDIA's resiliency extension, which the environment does not have.
        found.update(async_save=True, async_strategy="mcore", use_persistent_ckpt_worker=True)
    return found
