"""The adapter of TorchTitan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.backends.contract import Key, Rendered
from primus_bootstrap.launch.backends.key_table import check_recipe, read_keys
from primus_bootstrap.launch.backends.torchtitan import configuration, named_shape
from primus_bootstrap.launch.recipes.recipe import FSDP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.backends.contract import Run

_SECTIONS = {
    "model": ("vocabulary", "layers", "width", "heads", "kv_heads", "ffn_width", "rope_theta", "norm_eps", "experts"),
    "train": ("steps", "sequence_length", "global_batch", "micro_batch", "clip_norm", "seed"),
    "optimizer": ("lr", "beta1", "beta2", "eps", "weight_decay", "warmup_steps", "decay_steps", "min_lr_ratio"),
    "compute": ("precision", "recompute"),
    "parallel": ("strategy", "tensor", "pipeline", "virtual_pipeline", "context", "expert", "shards", "timeout_s"),
    "checkpoint": ("folder", "every_steps", "at_end", "keep", "asynchronous", "resume", "start_from"),
    "telemetry": ("prometheus_file", "print_every_steps"),
    "watchdog": ("step_timeout_s", "startup_timeout_s"),
    "drill": ("kind", "step", "rank", "slow_s", "once"),
    "data": ("source", "files"),
}
FILE, SHAPE_FILE = "torchtitan.toml", "torchtitan_model.json"


class TorchTitan:
    """TorchTitan, started by a program of this project around its trainer."""

    name = "torchtitan"
    version = "0.2.2"
    package = "torchtitan"
    script = "backends/torchtitan/pretrain.py"
    supported = frozenset(f"{section}.{name}" for section, names in _SECTIONS.items() for name in names)
    default_strategy = FSDP
    last_rank_logs = True  # with a pipeline, only the last stage knows the loss
    per_node = False
    same: Mapping[str, str] = {
        "training.steps": "train.steps",
        "training.seq_len": "train.sequence_length",
        "training.global_batch_size": "train.global_batch",
        "training.max_norm": "train.clip_norm",
        "parallelism.tensor_parallel_degree": "parallel.tensor",
        "parallelism.pipeline_parallel_degree": "parallel.pipeline",
        "parallelism.context_parallel_degree": "parallel.context",
        "parallelism.expert_parallel_degree": "parallel.expert",
        "checkpoint.folder": "checkpoint.folder",
        "checkpoint.interval": "checkpoint.every_steps",
    }

    def known_keys(self) -> Mapping[str, Key]:
        """Return the settings of the pinned version by name."""
        return read_keys(self.name, self.version)

    def render(self, run: Run) -> Rendered:
        """Return the configuration file of a run, and the command that reads it.

        Raises:
            PrimusError: TorchTitan cannot train this model or layout.
        """
        check_recipe(run.recipe, self.version, self.known_keys())
        chosen = configuration.values(run)
        files = [(FILE, configuration.toml(chosen))]
        if "model.flavor" not in {**run.recipe.keys, **run.keys}:
            files.append((SHAPE_FILE, named_shape.text(run.shape)))
        return Rendered(tuple(str(run.run_dir / name) for name, _ in files), files=tuple(files))
