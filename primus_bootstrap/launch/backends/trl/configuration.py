"""The settings of a run as TRL and PEFT name them: the file that workloads/backends/trl reads.

Source: trl/trainer/sft_config.py and grpo_config.py of 1.16.0, transformers/training_args.py of 5.24, peft/tuners/lora/config.py of 0.21.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError, UsageError
from primus_bootstrap.launch.recipes.recipe import FSDP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.backends.contract import Run

SFT, LORA, GRPO = "sft", "lora", "grpo"
TRAINERS = (SFT, GRPO)
_LORA_RANK = 16
# Keys that this program computes and that have no common setting.
_COMPUTED = {
    "num_train_epochs": "set train.steps: examples x epochs / train.global_batch",
    "gradient_accumulation_steps": "set train.global_batch",
    "resume_from_checkpoint": "set checkpoint.resume",
    "save_strategy": "set checkpoint.every_steps",
    "save_only_model": "remove it: a run resumes from the state of the optimizer",
    "eval_strategy": "set validation.every_steps",
    "logging_steps": "remove it: steps.jsonl has every step",
    "logging_strategy": "remove it: steps.jsonl has every step",
    "use_cpu": "set compute.device",
    "bf16": "set compute.precision",
    "fp16": "set compute.precision",
    "fsdp": "set parallel.strategy=fsdp",
    "gradient_checkpointing": "set compute.recompute",
    "ddp_timeout": "set parallel.timeout_s",
}


def job(run: Run) -> dict[str, Any]:
    """Return what the program is asked to do; values of the user replace those that the common settings give.

    Raises:
        UsageError: A setting contradicts the method.
        PlanError: The batch cannot be divided among the ranks.
    """
    settings = run.settings
    _check(run)
    method = settings["method"]
    return {
        "method": method,
        "model": settings["checkpoint.start_from"],
        "device": settings["compute.device"],
        "precision": settings["compute.precision"],
        "trainer": {**_trainer(run), **_own(run.keys, trainer_of(method))},
        "lora": {**_lora(settings), **_own(run.keys, LORA)} if uses_lora(settings) else None,
        "merge": settings["lora.merge"],
        "files": list(settings["data.files"]),
        "validation_files": list(settings["data.validation_files"]),
        "rewards": list(settings["rewards"]),
        "save_every": settings["checkpoint.every_steps"],
        "save_at_end": settings["checkpoint.at_end"],
        "export": settings["checkpoint.export"],
    }


def trainer_of(method: str) -> str:
    """Return the prefix of the keys of a method's trainer."""
    return GRPO if method == GRPO else SFT


def uses_lora(settings: Mapping[str, Any]) -> bool:
    """Return whether small matrices are trained instead of all weights."""
    return bool(settings["method"] == LORA or settings["lora.rank"])


def _own(keys: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {name.partition(".")[2]: _value(value) for name, value in keys.items() if name.startswith(f"{section}.")}


def _value(value: Any) -> Any:
    """Return the list or mapping that an argument has as JSON, such as trl.grpo.reward_weights=[1,0.5]; other values as they are."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _check(run: Run) -> None:
    settings, used = run.settings, {trainer_of(run.settings["method"])}
    if uses_lora(settings):
        used.add(LORA)
    for name in run.keys:
        section, _, key = name.partition(".")
        if section not in used:
            method = settings["method"]
            raise UsageError(
                f"trl.{name} is not used with method={method}", fix=f"remove it, or use one of: trl.{', trl.'.join(sorted(used))}"
            )
        if key in _COMPUTED:
            raise UsageError(f"trl.{name} is computed from the common settings", fix=_COMPUTED[key])
    if not settings["checkpoint.start_from"]:
        raise UsageError("no model is set", fix="set checkpoint.start_from to a folder with weights of Hugging Face and a tokenizer")
    if not settings["data.files"]:
        raise UsageError("no data is set", fix="set data.files to JSONL files with prompt and completion, or with messages")
    if settings["method"] == GRPO and not settings["rewards"]:
        raise UsageError("method=grpo needs a reward", fix="set rewards to exact_match, format, length:N or FILE.py:FUNCTION")
    if settings["compute.precision"] not in ("fp32", "bf16"):
        raise UsageError(f"trl does not train in {settings['compute.precision']}", fix="set compute.precision to bf16 or fp32")
    if settings["compute.recompute"] == "selective":
        raise UsageError("trl recomputes whole layers or nothing", fix="set compute.recompute to full or none")
    _check_strategy(run)
    _check_batch(run)


def _check_strategy(run: Run) -> None:
    if run.recipe.layout.data not in ("ddp", FSDP):
        raise UsageError(f"trl has no parallel.strategy={run.recipe.layout.data}", fix="set parallel.strategy to ddp or fsdp")


def _check_batch(run: Run) -> None:
    batch, ranks = run.recipe.batch, run.recipe.layout.gpus
    if batch.all % (batch.micro * ranks):
        what = f"train.global_batch={batch.all} is no multiple of train.micro_batch={batch.micro} x {ranks} ranks"
        raise PlanError(what, fix="change train.global_batch or train.micro_batch")
    generations = _generations(run)
    if run.settings["method"] == GRPO and batch.all % generations:
        what = f"train.global_batch={batch.all} is no multiple of the {generations} completions per prompt"
        raise PlanError(what, fix="change train.global_batch, or trl.grpo.num_generations")


def _generations(run: Run) -> int:
    """Return the completions per prompt: 8 is TRL's default."""
    return int(run.keys.get("grpo.num_generations", 8))


def _trainer(run: Run) -> dict[str, Any]:
    settings, batch = run.settings, run.recipe.batch
    length = "max_completion_length" if settings["method"] == GRPO else "max_length"
    found = {
        "output_dir": settings["checkpoint.folder"] or str(run.run_dir / "checkpoints"),
        "max_steps": settings["train.steps"],
        length: batch.length,
        "per_device_train_batch_size": batch.micro,
        "gradient_accumulation_steps": batch.all // (batch.micro * run.recipe.layout.gpus),
        "max_grad_norm": settings["train.clip_norm"],
        "seed": settings["train.seed"],
        "learning_rate": settings["optimizer.lr"],
        "adam_beta1": settings["optimizer.beta1"],
        "adam_beta2": settings["optimizer.beta2"],
        "adam_epsilon": settings["optimizer.eps"],
        "weight_decay": settings["optimizer.weight_decay"],
        "warmup_steps": settings["optimizer.warmup_steps"],
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": settings["optimizer.min_lr_ratio"]},
        "bf16": settings["compute.precision"] == "bf16",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # a loss that is not finite ends the run
        "report_to": "none",
        "disable_tqdm": True,
        "ddp_find_unused_parameters": False,
        "ddp_timeout": int(settings["parallel.timeout_s"]),
    }
    return {**found, **_validation(run), **_recompute(run)}


def _validation(run: Run) -> dict[str, Any]:
    settings, every = run.settings, run.settings["validation.every_steps"]
    if not settings["data.validation_files"] or not every:
        return {"eval_strategy": "no"}
    # GRPO validates whole groups of completions.
    batch = _generations(run) if settings["method"] == GRPO else settings["train.micro_batch"]
    return {"eval_strategy": "steps", "eval_steps": every, "per_device_eval_batch_size": batch}


def _recompute(run: Run) -> dict[str, Any]:
    """Return the settings of recomputation and sharding. FSDP has its own recomputation."""
    full = run.settings["compute.recompute"] == "full"
    if run.recipe.layout.data == FSDP:
        # Its checkpoints are one file per rank (torch.distributed.checkpoint).
        sharding = {"version": 2, "activation_checkpointing": full, "state_dict_type": "SHARDED_STATE_DICT"}
        return {"gradient_checkpointing": False, "fsdp": True, "fsdp_config": sharding}
    return {"gradient_checkpointing": full}


def _lora(settings: Mapping[str, Any]) -> dict[str, Any]:
    targets = list(settings["lora.targets"])
    return {
        "r": settings["lora.rank"] or _LORA_RANK,
        "lora_alpha": settings["lora.alpha"],
        "target_modules": targets[0] if targets == ["all-linear"] else targets,
        "task_type": "CAUSAL_LM",
    }


def values(stated: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting: the stated ones, then those of the method, then the defaults."""
    method = stated.get("method", SFT)
    rate = {SFT: 2e-5, LORA: 2e-4, GRPO: 1e-6}[method]
    if method != LORA and stated.get("lora.rank"):
        rate = 10 * rate
    defaults = {
        "optimizer.lr": rate,
        "optimizer.beta2": 0.999,
        "optimizer.weight_decay": 0.0,
        "train.sequence_length": 256 if method == GRPO else 1024,
        "lora.targets": ("all-linear",),
    }
    return {**known, **defaults, **stated}
