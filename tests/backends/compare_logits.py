"""Compare the native trainer with the transformers package: `PYTHON_OF_THE_BACKEND compare_logits.py FOLDER`; writes JSON lines.

For each model: weights that transformers wrote, read by the native trainer (`read`), and the other way around (`written`), as the largest
difference of two logits; `spread` is the standard deviation of the logits; `other` is the difference with one setting of the model changed.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from workloads.train import hugging_face
from workloads.train.model import Transformer
from workloads.train.settings import ComputeSettings, ModelSettings, Settings

_TOKENS = torch.arange(96).reshape(2, 48) * 7 % 96
_SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def models() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return a configuration of transformers per name, and the setting that is changed for `other`."""
    from transformers import LlamaConfig, MixtralConfig  # noqa: PLC0415 - only the interpreter of the backend has it

    return {
        "llama": (LlamaConfig(**_SIZES), {"rope_theta": 500.0}),
        "llama-3.1": (LlamaConfig(**_SIZES, rope_parameters=_SCALED), {"rope_factor": 1.0}),
        "tied": (LlamaConfig(**_SIZES, tie_word_embeddings=True), {"norm_eps": 1.0}),
        "mixtral": (MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2), {"experts_per_token": 1}),
    }


def compare(configuration: Any, changed: dict[str, Any], folder: Path) -> dict[str, float]:
    """Return the differences of one model."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - only the interpreter of the backend has it

    torch.manual_seed(3)
    theirs = AutoModelForCausalLM.from_config(configuration, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter).mul(0.3).to(torch.bfloat16))  # the export is in bf16
    theirs.save_pretrained(folder / "theirs")
    settings = ModelSettings(**hugging_face.settings_of(json.loads((folder / "theirs" / "config.json").read_text("utf-8"))))
    ours = native(settings, folder / "theirs")
    hugging_face.save_weights(folder / "ours", ours, Settings(model=settings), is_first=True)
    again = AutoModelForCausalLM.from_pretrained(folder / "ours", dtype=torch.float32).eval()
    expected = theirs(_TOKENS).logits
    other = Transformer(replace(settings, **changed), ComputeSettings(precision="fp32")).eval()
    other.load_state_dict(ours.state_dict())
    return {
        "read": difference(ours(_TOKENS)[0], expected),
        "written": difference(again(_TOKENS).logits, expected),
        "other": difference(other(_TOKENS)[0], expected),
        "spread": float(expected.std()),
    }


def native(settings: ModelSettings, folder: Path) -> Transformer:
    """Return the native model with the weights of a folder."""
    model = Transformer(settings, ComputeSettings(precision="fp32")).eval()
    hugging_face.load_weights(folder, model, settings)
    return model


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference."""
    return float((found.float() - expected).abs().max())


if __name__ == "__main__":
    for name, (found, changed) in models().items():
        with torch.no_grad():
            record = {"name": name, **compare(found, changed, Path(sys.argv[1]) / name)}
            sys.stdout.write(f"{json.dumps(record)}\n")
