"""Look at weights of Hugging Face: `PYTHON_OF_THE_BACKEND use_model.py parameters|names|compare|merged FOLDER...`; writes JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_TOKENS = torch.arange(40).reshape(2, 20) + 10


def load(folder: str) -> Any:
    """Return the model of a folder, in fp32."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - only the interpreter of the backend has it

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def difference(first: Any, second: Any) -> float:
    """Return the largest difference of two logits."""
    with torch.no_grad():
        return float((first(_TOKENS).logits - second(_TOKENS).logits).abs().max())


def parameters(folder: str) -> dict[str, Any]:
    """Return the number of parameters."""
    return {"parameters": sum(parameter.numel() for parameter in load(folder).parameters())}


def names(folder: str) -> dict[str, Any]:
    """Return whether a checkpoint has the matrices of LoRA only."""
    from safetensors import safe_open  # noqa: PLC0415 - only the interpreter of the backend has it

    with safe_open(f"{folder}/adapter_model.safetensors", framework="pt") as file:
        found = list(file.keys())
    return {"only_lora": bool(found) and all("lora_A" in name or "lora_B" in name for name in found)}


def compare(first: str, second: str) -> dict[str, Any]:
    """Return the largest difference of two models."""
    return {"difference": difference(load(first), load(second))}


def merged(folder: str, base: str, adapter: str) -> dict[str, Any]:
    """Return the differences of a merged model from the base with its adapter, and from the base alone."""
    from peft import PeftModel  # noqa: PLC0415 - only the interpreter of the backend has it

    model, adapted = load(folder), PeftModel.from_pretrained(load(base), adapter).eval()
    return {"difference": difference(model, adapted), "changed": difference(model, load(base))}


if __name__ == "__main__":
    functions: dict[str, Callable[..., dict[str, Any]]] = {"parameters": parameters, "names": names, "compare": compare, "merged": merged}
    sys.stdout.write(f"{json.dumps(functions[sys.argv[1]](*sys.argv[2:]))}\n")
