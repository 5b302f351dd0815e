"""The adapter of TRL: supervised fine-tuning (SFT), SFT with LoRA, and GRPO."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from primus_bootstrap.launch.backends.contract import Key, Rendered
from primus_bootstrap.launch.backends.key_table import read_keys
from primus_bootstrap.launch.backends.trl import configuration
from primus_bootstrap.launch.recipes.recipe import DDP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.backends.contract import Run

_SECTIONS = {
    "train": ("steps", "sequence_length", "global_batch", "micro_batch", "clip_norm", "seed"),
    "optimizer": ("lr", "beta1", "beta2", "eps", "weight_decay", "warmup_steps", "min_lr_ratio"),
    "compute": ("device", "precision", "recompute"),
    "parallel": ("strategy", "timeout_s"),
    "checkpoint": ("folder", "every_steps", "at_end", "keep", "resume", "start_from", "export"),
    "lora": ("rank", "alpha", "targets", "merge"),
    "data": ("files", "validation_files"),
    "validation": ("every_steps",),
    "telemetry": ("prometheus_file", "print_every_steps"),
    "watchdog": ("step_timeout_s", "startup_timeout_s"),
}
FILE = "trl.json"
_SAME = {
    "max_steps": "train.steps",
    "per_device_train_batch_size": "train.micro_batch",
    "max_grad_norm": "train.clip_norm",
    "seed": "train.seed",
    "learning_rate": "optimizer.lr",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon": "optimizer.eps",
    "weight_decay": "optimizer.weight_decay",
    "warmup_steps": "optimizer.warmup_steps",
    "output_dir": "checkpoint.folder",
    "save_steps": "checkpoint.every_steps",
    "save_total_limit": "checkpoint.keep",
    "eval_steps": "validation.every_steps",
}


class Trl:
    """TRL, started by a program of this project around its trainers."""

    name = "trl"
    version = "1.16.0"
    package = "trl"
    script = "backends/trl/posttrain.py"
    supported = frozenset((*(f"{section}.{name}" for section, names in _SECTIONS.items() for name in names), "method", "rewards"))
    default_strategy = DDP
    last_rank_logs = False
    per_node = False
    same: Mapping[str, str] = {
        **{f"{trainer}.{key}": common for trainer in configuration.TRAINERS for key, common in _SAME.items()},
        "sft.max_length": "train.sequence_length",
        "grpo.max_completion_length": "train.sequence_length",
        "lora.r": "lora.rank",
        "lora.lora_alpha": "lora.alpha",
        "lora.target_modules": "lora.targets",
    }

    def known_keys(self) -> Mapping[str, Key]:
        """Return the settings of the pinned version by name: those of SFTConfig, GRPOConfig and LoraConfig."""
        return read_keys(self.name, self.version)

    def render(self, run: Run) -> Rendered:
        """Return the file that the program reads.

        Raises:
            PrimusError: The settings do not suit the method or the number of ranks.
        """
        text = json.dumps(configuration.job(run), indent=1) + "\n"
        # Nothing is downloaded: the model and the data are files.
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return Rendered((str(run.run_dir / FILE),), files=((FILE, text),), environment=offline)
