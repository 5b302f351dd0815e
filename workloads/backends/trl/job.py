"""What the launcher asks this program to do: trl.json in the run folder (primus_bootstrap/launch/backends/trl/configuration.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

GRPO = "grpo"


@dataclass(frozen=True, slots=True)
class Job:
    """One run of post-training."""

    method: str  # sft, lora or grpo
    model: str  # folder with weights of Hugging Face and a tokenizer
    device: str  # auto, cpu or cuda
    precision: str  # fp32 or bf16
    trainer: dict[str, Any]  # settings of SFTConfig or GRPOConfig
    lora: dict[str, Any] | None  # settings of LoraConfig; None trains all weights
    merge: bool  # the export has the sum of weights and trained matrices
    files: list[str]
    validation_files: list[str]
    rewards: list[str]
    save_every: int  # steps between checkpoints; 0: none
    save_at_end: bool
    export: str  # folder for the trained weights; empty: none


def read_job(path: Path) -> Job:
    """Return the job of a file.

    Raises:
        SettingsError: The file is missing, or another version of primus-cli wrote it.
    """
    fix = "start the run with primus-cli direct -- train posttrain, which writes this file"
    try:
        content = json.loads(path.read_text("utf-8"))
        return Job(**{entry.name: content[entry.name] for entry in fields(Job)})
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", fix=fix) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{path}: not the file of a run: {error}", fix=fix) from error
