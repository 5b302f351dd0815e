"""The adapter of Megatron-LM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.backends.contract import Key, Rendered
from primus_bootstrap.launch.backends.key_table import check_recipe, read_keys
from primus_bootstrap.launch.backends.megatron import arguments
from primus_bootstrap.launch.recipes.recipe import DISTRIBUTED_OPTIMIZER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.backends.contract import Run

_MODEL = ("vocabulary", "layers", "width", "heads", "kv_heads", "ffn_width", "rope_theta", "norm_eps", "experts", "experts_per_token")
_PARALLEL = (
    "strategy", "tensor", "pipeline", "virtual_pipeline", "context", "expert", "sequence", "timeout_s",
)  # fmt: skip
_SECTIONS = {
    "model": _MODEL,
    "train": ("steps", "sequence_length", "global_batch", "micro_batch", "clip_norm", "seed"),
    "optimizer": ("lr", "beta1", "beta2", "eps", "weight_decay", "warmup_steps", "decay_steps", "min_lr_ratio"),
    "compute": ("precision", "recompute", "recompute_layers"),
    "parallel": _PARALLEL,
    "checkpoint": ("folder", "every_steps", "at_end", "keep", "asynchronous", "resume", "start_from"),
    "telemetry": ("prometheus_file", "print_every_steps"),
    "watchdog": ("step_timeout_s", "startup_timeout_s"),
    "drill": ("kind", "step", "rank", "slow_s", "once"),
    "data": ("source", "files"),
}


class Megatron:
    """Megatron-LM, started by a program of this project around megatron.training.pretrain."""

    name = "megatron"
    version = "0.19.2"
    package = "megatron-core"
    script = "backends/megatron/pretrain.py"
    supported = frozenset(f"{section}.{name}" for section, names in _SECTIONS.items() for name in names)
    default_strategy = DISTRIBUTED_OPTIMIZER
    last_rank_logs = True
    per_node = False
    same: Mapping[str, str] = {
        "train_iters": "train.steps",
        "seq_length": "train.sequence_length",
        "micro_batch_size": "train.micro_batch",
        "global_batch_size": "train.global_batch",
        "tensor_model_parallel_size": "parallel.tensor",
        "pipeline_model_parallel_size": "parallel.pipeline",
        "context_parallel_size": "parallel.context",
        "expert_model_parallel_size": "parallel.expert",
        "recompute_num_layers": "compute.recompute_layers",
        "save": "checkpoint.folder",
        "save_interval": "checkpoint.every_steps",
        "async_save": "checkpoint.asynchronous",
    }

    def known_keys(self) -> Mapping[str, Key]:
        """Return the settings of the pinned version by name."""
        return read_keys(self.name, self.version)

    def render(self, run: Run) -> Rendered:
        """Return the command of a run.

        Raises:
            PrimusError: Megatron-LM cannot train this model or layout.
        """
        known = self.known_keys()
        check_recipe(run.recipe, self.version, known)
        chosen = arguments.values(run)
        # megatron/training/arguments.py checks it: tensor and context parallelism need one queue to overlap communication, FSDP needs more.
        queues = "8" if chosen.get("use_torch_fsdp2") or chosen.get("use_megatron_fsdp") else "1"
        return Rendered(arguments.words(chosen, known), environment={"CUDA_DEVICE_MAX_CONNECTIONS": queues})
