"""The adapter of MaxText."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.backends.contract import Key, Rendered
from primus_bootstrap.launch.backends.key_table import check_recipe, read_keys
from primus_bootstrap.launch.backends.maxtext import configuration
from primus_bootstrap.launch.recipes.recipe import FSDP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.backends.contract import Run

_SECTIONS = {
    "model": ("vocabulary", "layers", "width", "heads", "kv_heads", "ffn_width", "rope_theta", "norm_eps", "experts", "experts_per_token"),
    "train": ("steps", "sequence_length", "global_batch", "micro_batch", "clip_norm", "seed"),
    "optimizer": ("lr", "beta1", "beta2", "eps", "weight_decay", "warmup_steps", "decay_steps", "min_lr_ratio"),
    "compute": ("precision", "recompute"),
    "parallel": ("strategy", "tensor", "context", "expert", "shards", "timeout_s"),
    "checkpoint": ("folder", "every_steps", "at_end", "keep", "resume", "start_from", "asynchronous"),
    "telemetry": ("prometheus_file", "print_every_steps"),
    "data": ("source",),
    "watchdog": ("step_timeout_s", "startup_timeout_s"),
}


class MaxText:
    """MaxText, started by a program of this project around its training loop. One process per node uses all GPUs of the node."""

    name = "maxtext"
    version = "0.2.5"
    package = "maxtext"
    script = "backends/maxtext/pretrain.py"
    supported = frozenset(f"{section}.{name}" for section, names in _SECTIONS.items() for name in names)
    default_strategy = FSDP
    last_rank_logs = False
    per_node = True
    same: Mapping[str, str] = {
        "steps": "train.steps",
        "max_target_length": "train.sequence_length",
        "gradient_clipping_threshold": "train.clip_norm",
        "learning_rate": "optimizer.lr",
        "learning_rate_schedule_steps": "optimizer.decay_steps",
        "learning_rate_final_fraction": "optimizer.min_lr_ratio",
        "adam_b1": "optimizer.beta1",
        "adam_b2": "optimizer.beta2",
        "adam_eps": "optimizer.eps",
        "adam_weight_decay": "optimizer.weight_decay",
        "ici_tensor_parallelism": "parallel.tensor",
        "ici_context_parallelism": "parallel.context",
        "ici_expert_parallelism": "parallel.expert",
        "checkpoint_period": "checkpoint.every_steps",
        "async_checkpointing": "checkpoint.asynchronous",
        "max_num_checkpoints_to_keep": "checkpoint.keep",
        "load_parameters_path": "checkpoint.start_from",
        "load_full_state_path": "checkpoint.resume",
    }

    def known_keys(self) -> Mapping[str, Key]:
        """Return the settings of the pinned version by name."""
        return read_keys(self.name, self.version)

    def render(self, run: Run) -> Rendered:
        """Return the command of a run.

        Raises:
            PrimusError: MaxText cannot train this model or layout.
        """
        check_recipe(run.recipe, self.version, self.known_keys())
        # Without DECOUPLE_GCLOUD, MaxText imports the libraries of Google Cloud.
        return Rendered(configuration.words(configuration.values(run)), environment={"DECOUPLE_GCLOUD": "TRUE"})
