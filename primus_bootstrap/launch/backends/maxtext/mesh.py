"""A layout as axes of MaxText's mesh: `ici_` axes are inside of a node, `dcn_` axes are over nodes. -1 means what remains."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.recipes.recipe import DDP, DISTRIBUTED_OPTIMIZER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.recipes.recipe import Layout, Recipe

_NODE_GPUS = 8  # the nodes of all GPU models that recipes name have 8


def axes(recipe: Recipe) -> dict[str, Any]:
    """Return the axes of a recipe's layout. Those that the recipe names replace them, unless the number of GPUs is another one."""
    found = _of_layout(recipe.layout)
    own = {name: value for name, value in recipe.keys.items() if name.startswith(("ici_", "dcn_"))}
    return {**found, **own} if _suits({**found, **own}, recipe.layout.gpus) else found


def without_axes(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are no axes."""
    return {name: value for name, value in keys.items() if not name.startswith(("ici_", "dcn_"))}


def _suits(found: Mapping[str, Any], gpus: int) -> bool:
    inside = [int(value) for name, value in found.items() if name.startswith("ici_")]
    fixed = math.prod(value for value in inside if value > 0)
    return inside.count(-1) < 2 and fixed <= _NODE_GPUS and gpus % fixed == 0


def _of_layout(layout: Layout) -> dict[str, Any]:
    model = {
        "ici_tensor_parallelism": layout.tensor,
        "ici_context_parallelism": layout.context,
        "ici_expert_parallelism": layout.expert,
    }
    if layout.data in (DDP, DISTRIBUTED_OPTIMIZER):
        return {**model, "ici_data_parallelism": -1, "ici_fsdp_parallelism": 1, "dcn_data_parallelism": -1, "dcn_fsdp_parallelism": 1}
    if layout.shards and layout.shards != layout.replicas:
        shards = max(1, layout.shards // layout.expert)
        return {**model, "ici_data_parallelism": -1, "ici_fsdp_parallelism": shards, "dcn_data_parallelism": -1, "dcn_fsdp_parallelism": 1}
    return {**model, "ici_data_parallelism": 1, "ici_fsdp_parallelism": -1, "dcn_data_parallelism": 1, "dcn_fsdp_parallelism": -1}
