"""The shape of a model that TorchTitan does not know by name, for the program that registers it as a Llama model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from primus_bootstrap.launch.recipes.model_shape import ModelShape

NAME, FLAVOR = "llama3", "settings"


def text(shape: ModelShape) -> str:
    """Return the file, whose names are those of TransformerModelArgs in torchtitan/models/llama3/model/args.py.

    Raises:
        PlanError: The model is no Llama model.
    """
    missing = _missing(shape)
    if missing:
        fix = "set torchtitan.model.name and torchtitan.model.flavor to a model of TorchTitan, or choose another backend"
        raise PlanError(f"torchtitan has no model {shape.name} by name, and its Llama models have no {missing}", fix=fix)
    found = {
        "dim": shape.width,
        "n_layers": shape.layers,
        "n_heads": shape.heads,
        "n_kv_heads": shape.kv_heads,
        "vocab_size": shape.vocabulary,
        "norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        # Its width is 8/3 of dim, times the factor, rounded up to a multiple: half of the width and the width itself give the width.
        "multiple_of": shape.ffn_width,
        "ffn_dim_multiplier": 0.5 * shape.ffn_width / int(8 * shape.width / 3),
    }
    return json.dumps(found, indent=1) + "\n"


def _missing(shape: ModelShape) -> str:
    """Return the first part of a model that a Llama model does not have; empty if there is none."""
    parts = {
        "experts": shape.experts is not None,
        "latent attention": shape.latent is not None,
        "biases": shape.qkv_bias or shape.output_bias,
        "norms of queries and keys": shape.qk_norm,
        "attention sinks": shape.sinks,
        "local attention": bool(shape.window and shape.window_every),
        "tied embeddings": shape.tied,
        "heads of another size than width / heads": shape.head_size * shape.heads != shape.width,
    }
    return next((name for name, present in parts.items() if present), "")
