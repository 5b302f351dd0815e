"""Write the trained weights in the format of Hugging Face: the whole model, an adapter of LoRA, or the sum of both."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from workloads.common.errors import SettingsError, StorageError
from workloads.common.files import replace_text, sync_folder

if TYPE_CHECKING:
    from workloads.backends.trl.job import Job

_MARK, _CONFIG = "primus-export.json", "config.json"


def require_replaceable(folder: Path) -> None:
    """Check that an export would overwrite nothing but an earlier export.

    Raises:
        SettingsError: The folder has other content.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _MARK).is_file():
        raise SettingsError(f"checkpoint.export: {folder} exists, and this trainer did not write it", fix="give a new folder")
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"checkpoint.export: {folder} is a file", fix="give a new folder")


def export(trainer: Any, job: Job, step: int) -> None:
    """Write the weights. All ranks call it; the first one writes. The folder gets its name when it is complete.

    Raises:
        StorageError: The folder cannot be written.
    """
    state = _state(trainer)
    if trainer.is_world_process_zero():
        folder = Path(job.export)
        partial = folder.with_name(f".{folder.name}.partial")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            _write(trainer, job, state, partial)
            replace_text(partial / _MARK, json.dumps({"method": job.method, "model": job.model, "step": step}, indent=1) + "\n")
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
            sync_folder(folder.parent)
        except OSError as error:
            raise StorageError(f"{folder}: cannot be written: {error}", fix="free space or repair the storage, then start again") from error
        print(f"exported the weights of step {step} to {folder}", flush=True)
    trainer.accelerator.wait_for_everyone()


def _state(trainer: Any) -> dict[str, Any]:
    """Return the weights; with FSDP, the whole of all shards, on the CPU of the first rank."""
    if trainer.is_fsdp_enabled:
        return dict(get_model_state_dict(trainer.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))
    return dict(trainer.accelerator.get_state_dict(trainer.model))


def _write(trainer: Any, job: Job, state: dict[str, Any], folder: Path) -> None:
    dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32
    trained = trainer.accelerator.unwrap_model(trainer.model)
    trainer.processing_class.save_pretrained(folder)
    if job.lora is None:
        _save(trained, folder, dtype, {name: _cast(value, dtype) for name, value in state.items()})
        return
    adapter = folder / "adapter" if job.merge else folder
    trained.save_pretrained(adapter, state_dict=state)
    if job.merge:
        _merge(job, adapter, folder, dtype)
        shutil.rmtree(adapter)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if torch.is_tensor(value) and value.is_floating_point() else value


def _save(model: Any, folder: Path, dtype: torch.dtype, state: dict[str, Any] | None = None) -> None:
    model.save_pretrained(folder, state_dict=state)
    config = json.loads((folder / _CONFIG).read_text("utf-8"))
    replace_text(folder / _CONFIG, json.dumps({**config, "dtype": str(dtype).removeprefix("torch.")}, indent=2) + "\n")


def _merge(job: Job, adapter: Path, folder: Path, dtype: torch.dtype) -> None:
    """Add the matrices of an adapter to the weights on the CPU, in fp32."""
    from peft import PeftModel  # noqa: PLC0415 - only for LoRA
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - the same

    base = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    _save(merged.to(dtype), folder, dtype)
