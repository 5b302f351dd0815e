"""The settings that do not work together. primus-cli reads this list from the source, and rejects them before anything is queued.

An entry has the conditions that must not be met together, by setting, and the fix. A condition is a value, `above N`, or `set` for a text
that is not empty.
"""

from __future__ import annotations

from typing import Any

COMBINATIONS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"parallel.tensor": "above 1", "parallel.strategy": "ddp"}, "set parallel.strategy=fsdp: DDP does not support sharded matrices"),
    ({"parallel.tensor": "above 1", "model.experts": "above 0"}, "set parallel.tensor=1: fsdp and parallel.expert shard experts"),
    (
        {"parallel.tensor": "above 1", "model.dropout": "above 0"},
        "set model.dropout=0: the ranks of one matrix would drop different values",
    ),
    (
        {"parallel.tensor": "above 1", "lora.rank": "above 0"},
        "set parallel.tensor=1: frozen weights need little memory, and fsdp shards them",
    ),
    ({"parallel.tensor": "above 1", "compute.precision": "fp8"}, "set compute.precision=bf16, or parallel.tensor=1"),
    ({"parallel.async_tensor": True, "parallel.tensor": 1}, "set parallel.async_tensor=false: it has no effect without parallel.tensor"),
    ({"parallel.async_tensor": True, "compute.compile": False}, "set compute.compile=true: torch.compile arranges the exchanges"),
    ({"parallel.async_tensor": True, "compute.device": "cpu"}, "set parallel.async_tensor=false: it needs GPUs with peer access"),
    ({"parallel.context": "above 1", "compute.attention": "cudnn"}, "set compute.attention=auto: cuDNN has no mask for part of a sequence"),
    ({"parallel.pipeline": "above 1", "parallel.strategy": "ddp"}, "set parallel.strategy=fsdp: DDP would exchange gradients too early"),
    (
        {"parallel.pipeline": "above 1", "lora.rank": "above 0"},
        "set parallel.pipeline=1: frozen weights need little memory, and fsdp shards them",
    ),
    (
        {"parallel.pipeline": "above 1", "checkpoint.export": "set"},
        "leave checkpoint.export out, and export afterwards: start again from the last checkpoint with parallel.pipeline=1",
    ),
    ({"parallel.virtual_pipeline": "above 1", "parallel.pipeline": 1}, "set parallel.virtual_pipeline=1, or raise parallel.pipeline"),
    ({"parallel.expert": "above 1", "parallel.strategy": "ddp"}, "set parallel.strategy=fsdp: DDP expects the same experts on every rank"),
    ({"parallel.expert": "above 1", "model.experts": 0}, "set parallel.expert=1: the model has no experts"),
    ({"compute.precision": "fp8", "lora.rank": "above 0"}, "set compute.precision=bf16: fp8 would also round the frozen weights"),
    (
        {"compute.precision": "fp8", "compute.fp8_recipe": "tensorwise", "compute.device": "cpu"},
        "set compute.precision=bf16: it needs a GPU",
    ),
    ({"compute.precision": "fp8", "compute.fp8_recipe": "rowwise", "compute.device": "cpu"}, "set compute.precision=bf16: it needs a GPU"),
    ({"compute.precision": "fp8", "compute.fp8_recipe": "emulated", "compute.compile": True}, "set compute.compile=false"),
)


def meets(value: Any, condition: Any) -> bool:
    """Return whether a value meets a condition."""
    if condition == "set":
        return bool(value)
    if isinstance(condition, str) and condition.startswith("above "):
        return float(value) > float(condition.removeprefix("above "))
    return bool(value == condition)
