"""With PRIMUS_DETERMINISTIC=1, set the variables that make two runs of a snapshot give the same results on the same GPUs."""

from __future__ import annotations

import os
from typing import Any

_SETTINGS = {
    # One algorithm, so that sums have a fixed order: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-algo
    "NCCL_ALGO": "Ring",
    # Without a fixed workspace cuBLAS may select other kernels: https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Transformer Engine: https://github.com/NVIDIA/TransformerEngine/blob/main/docs/envvars.rst
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
    # rocBLAS without atomic adds: https://rocm.docs.amd.com/projects/rocBLAS/en/latest/reference/env-variables.html
    "ROCBLAS_DEFAULT_ATOMICS_MODE": "0",
}


def hook(_plan: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the variables that are not set yet; none unless PRIMUS_DETERMINISTIC is 1."""
    if os.environ.get("PRIMUS_DETERMINISTIC") != "1":
        return {}
    return {"env": {name: value for name, value in _SETTINGS.items() if name not in os.environ}}
