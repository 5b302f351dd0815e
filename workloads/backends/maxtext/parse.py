"""Pass command lines through MaxText's own parser and its checks, without a GPU and without other nodes.

Reads one JSON object per line from stdin, {"name": …, "world_size": 16, "argv": ["steps=5", …]}, and prints one per line:
{"name": …, "error": "", "global_batch": 64, "mesh": {"fsdp": 8}}; `error` is the message of MaxText. Nodes have eight GPUs.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

_MOST_DEVICES, _NODE_DEVICES = 128, 8


def judge(name: str, world_size: int, words: list[str]) -> dict[str, Any]:
    """Return what MaxText makes of a command line on this number of GPUs."""
    import jax  # noqa: PLC0415 - only the interpreter of the backend has it
    from maxtext.configs import pyconfig  # noqa: PLC0415 - the same
    from maxtext.utils import max_utils, train_utils  # noqa: PLC0415 - the same

    devices, slices = jax.local_devices(), max(1, world_size // _NODE_DEVICES)
    jax.devices = lambda *_backend: devices[:world_size]
    try:
        config = pyconfig._initialize_pydantic(["", *words, f"num_slices={slices}"])  # noqa: SLF001 - `initialize` ends the process
        config = pyconfig.HyperParameters(config)
        train_utils.validate_train_config(config)
        inside = max_utils.fill_unspecified_mesh_axes(config.ici_parallelism.copy(), world_size // slices, "ICI")
        across = max_utils.fill_unspecified_mesh_axes(config.dcn_parallelism.copy(), slices, "DCN")
    except Exception as error:  # noqa: BLE001 - its checks raise ValueError, AssertionError, ValidationError and others
        return {"name": name, "error": f"{type(error).__name__}: {error}"}
    sizes = {axis: here * there for axis, here, there in zip(config.mesh_axes, inside, across, strict=True)}
    answer = {"global_batch": config.global_batch_size_to_train_on, "mesh": {axis: size for axis, size in sizes.items() if size > 1}}
    shape = {key: getattr(config, key) for key in ("emb_dim", "num_decoder_layers", "num_query_heads", "vocab_size")}
    return {"name": name, "error": "", **answer, "shape": shape}


def main() -> int:
    """Judge every command line of stdin; return 0, or 1 if one is refused."""
    os.environ.update(DECOUPLE_GCLOUD="TRUE", JAX_PLATFORMS="cpu", HF_HUB_OFFLINE="1")
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={_MOST_DEVICES}"
    refused = False
    for line in sys.stdin:
        asked = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):  # MaxText prints remarks
            answer = judge(asked["name"], asked["world_size"], asked["argv"])
        refused = refused or bool(answer["error"])
        print(json.dumps(answer), flush=True)
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
