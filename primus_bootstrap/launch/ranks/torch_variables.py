"""Rename variables of the host's profile to the names that newer versions of torch read; torch warns about the old names in every rank."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.run_plan import USER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.run_plan import Plan

# 2.9 and later: FlightRecorder.hpp reads {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}; getCvarInt warns unless it is the first:
# https://github.com/pytorch/pytorch/tree/v2.9.0/torch/csrc/distributed/c10d (Utils.hpp); the allocator's name:
# https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
_SINCE = (2, 9)
_NEWER = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "TORCH_FR_BUFFER_SIZE", "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_ALLOC_CONF"}


def renamed(plan: Plan, torch_version: str, profile: Mapping[str, str]) -> Plan:
    """Return the plan with the profile's variables under the names that a version of torch reads.

    This includes variables that a login shell set from the profile. Variables of the user keep their names; an unknown version changes
    nothing. If both names are set, torch reads the newer one.
    """
    version = re.match(r"(\d+)\.(\d+)", torch_version)
    if not version or (int(version[1]), int(version[2])) < _SINCE:
        return plan
    user = {item.name for item in plan.environment if item.origin.startswith(USER)}
    for old, new in _NEWER.items():
        environment = plan.full_environment()
        if old in user or old not in profile or environment.get(old) != profile[old]:
            continue
        others = tuple(item for item in plan.environment if item.name != old)
        inherited = {name: value for name, value in plan.inherited.items() if name != old}
        plan = replace(plan, environment=others, inherited=inherited)
        if new not in environment:
            plan = plan.with_variables({new: profile[old]}, f"profile {old}", f"its name since torch {_SINCE[0]}.{_SINCE[1]}")
    return plan
