"""Train with TRL: read model and data, choose the checkpoint, and start the trainer of the method."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

from workloads.backends.common.checkpoint_marks import content_of
from workloads.backends.trl import cpu_shim, data, model_facts, parser
from workloads.backends.trl.export import export, require_replaceable
from workloads.backends.trl.job import GRPO
from workloads.backends.trl.rewards import reward_functions
from workloads.common.errors import SettingsError, StorageError
from workloads.train.checkpoint_folder import complete_checkpoints

if TYPE_CHECKING:
    from collections.abc import Callable

    from workloads.backends.common.run_facts import RunFacts
    from workloads.backends.trl.job import Job
    from workloads.backends.trl.reporter import Reporter


def on_cpu(job: Job) -> bool:
    """Return whether this run uses no GPU.

    Raises:
        SettingsError: It must use one, and there is none.
    """
    if job.device == "cuda" and not torch.cuda.is_available():
        raise SettingsError("compute.device=cuda, and torch sees no GPU", fix="set compute.device=auto, or check the driver of the GPUs")
    return job.device == "cpu" or not torch.cuda.is_available()


def settings_of(job: Job) -> Any:
    """Return the settings of the trainer, which TRL's own class has checked.

    Raises:
        SettingsError: TRL refuses them.
    """
    if on_cpu(job) and job.trainer.get("fsdp"):
        _use_fsdp_on_cpus()
    placement = {"use_cpu": True, "ddp_backend": "gloo"} if on_cpu(job) else {}
    try:
        return parser.trainer_settings(job.method, {"save_strategy": "no", **job.trainer, **placement})
    except (TypeError, ValueError, AssertionError) as error:
        raise SettingsError(f"TRL refuses the settings: {error}", fix="change the settings that the message names") from error


def _use_fsdp_on_cpus() -> None:
    """Install the shim of the tests.

    Raises:
        SettingsError: It is not wanted. Without it, accelerate would not shard the model.
    """
    if not cpu_shim.wanted():
        raise SettingsError("parallel.strategy=fsdp needs GPUs with this backend", fix="set parallel.strategy=ddp")
    cpu_shim.install()


class Run:
    """One rank of a run."""

    def __init__(self, job: Job, folder: Path, checkpoints: Path) -> None:
        """Check what can be checked before the model is loaded."""
        self.job, self.folder, self.checkpoints = job, folder, checkpoints
        if job.export:
            require_replaceable(Path(job.export))
        self.rewards = reward_functions(job.rewards)
        prompts = job.method == GRPO
        self.examples = data.read_examples(job.files, prompts_only=prompts)
        self.validation = data.read_examples(job.validation_files, prompts_only=prompts) if job.validation_files else []
        self.settings = settings_of(job)
        set_seed(self.settings.seed)

    def load(self) -> None:
        """Load the tokenizer and the weights.

        Raises:
            StorageError: They cannot be read.
            SettingsError: The data has dialogues, and the tokenizer has no template for them.
        """
        # LoRA does not change the weights, so they need no fp32 copy.
        dtype = torch.bfloat16 if self.job.lora and self.job.precision == "bf16" else torch.float32
        try:
            self.tokenizer = AutoTokenizer.from_pretrained(self.job.model)
            self.model = AutoModelForCausalLM.from_pretrained(self.job.model, dtype=dtype)
        except (OSError, ValueError) as error:
            fix = "set checkpoint.start_from to a folder with config.json, safetensors files and a tokenizer"
            raise StorageError(f"{self.job.model}: cannot be loaded: {error}", fix=fix) from error
        template = self.tokenizer.chat_template or self.job.trainer.get("chat_template_path")
        if data.has_dialogues(self.examples) and not template:
            fix = "set trl.sft.chat_template_path to a Jinja file, or write prompt and completion as texts"
            raise SettingsError(f"the data has messages, and the tokenizer in {self.job.model} has no chat template", fix=fix)

    def facts(self, facts: RunFacts) -> RunFacts:
        """Return the facts with the numbers of the loaded model."""
        return model_facts.with_model(facts, self.model, frozen=self.job.lora is not None)

    def train(self, facts: RunFacts, reporter: Reporter, timed: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> bool:
        """Train; return whether the run stopped early, after it has written a checkpoint."""
        trainer = self._trainer(reporter)
        trainer._save_checkpoint = timed("checkpoint", trainer._save_checkpoint)  # noqa: SLF001 - it has a time limit of its own
        trainer.evaluate = timed("validation", trainer.evaluate)
        resumed = resumed_checkpoint(self.checkpoints, facts.resume)
        step = _step_of(resumed)
        if resumed is not None:
            print(f"resume from {resumed}", flush=True)
            reporter.resume(self.folder, step)
        if step < facts.steps:
            trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
        elif resumed is not None:
            trainer._load_from_checkpoint(str(resumed))  # noqa: SLF001 - all steps are done, so only the export remains
        if self.job.export and not reporter.stopped_early:
            timed("export", export)(trainer, self.job, max(step, trainer.state.global_step))
        return reporter.stopped_early

    def _trainer(self, reporter: Reporter) -> Any:
        from trl import GRPOTrainer, SFTTrainer  # noqa: PLC0415 - takes a while

        common = {
            "model": self.model,
            "args": self.settings,
            "train_dataset": Dataset.from_list(self.examples),
            "eval_dataset": Dataset.from_list(self.validation) if self.validation else None,
            "processing_class": self.tokenizer,
            "peft_config": parser.lora_settings(self.job.lora) if self.job.lora is not None else None,
            "callbacks": [reporter],
        }
        return GRPOTrainer(reward_funcs=self.rewards, **common) if self.job.method == GRPO else SFTTrainer(**common)


def resumed_checkpoint(folder: Path, resume: str) -> Path | None:
    """Return the folder of the checkpoint to resume from: the newest complete one of this run, or the one that is named.

    Raises:
        StorageError: The named one is no complete checkpoint of TRL.
    """
    if resume == "never":
        return None
    own = complete_checkpoints(folder)
    if own:
        return folder / content_of(own[0])
    if resume == "auto":
        return None
    path = Path(resume)
    if content_of(path):
        path = path.parent / content_of(path)
    if not (path / "trainer_state.json").is_file():
        raise StorageError(f"{path}: no checkpoint of TRL", fix="give the path of a folder step-N or checkpoint-N of another run")
    return path


def _step_of(checkpoint: Path | None) -> int:
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint is not None else 0


def close() -> None:
    """End the process group."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def is_first() -> bool:
    """Return whether this is the first rank."""
    return os.environ.get("RANK", "0") == "0"
