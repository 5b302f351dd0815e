"""Pass configuration files through TorchTitan's own parser and its checks, without a GPU and without process groups.

Reads one JSON object per line from stdin, {"name": …, "world_size": 16, "files": {"torchtitan.toml": …, "torchtitan_model.json": …}}, and
prints one per line: {"name": …, "error": "", "data_parallel_size": 2, "micro_batches": 8}; `error` is the message of TorchTitan.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])


def judge(name: str, world_size: int, paths: list[str]) -> dict[str, Any]:
    """Return what TorchTitan makes of a configuration file on this number of ranks."""
    from workloads.backends.torchtitan import trainer  # noqa: PLC0415 - only the interpreter of the backend has torchtitan

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            config = trainer.read_configuration(paths[0])
            trainer.register_model(paths[1:])
            dimensions = _dimensions(config.parallelism, world_size)
            micro_batches = _check_model_and_batch(config, dimensions)
        except SystemExit:  # tyro has printed the reason
            return {"name": name, "error": said.getvalue().strip()}
        except Exception as error:  # noqa: BLE001 - its checks raise AssertionError, ValueError, KeyError and others
            return {"name": name, "error": f"{type(error).__name__}: {error}"}
    return {"name": name, "error": "", "data_parallel_size": dimensions.dp_replicate * dimensions.dp_shard, "micro_batches": micro_batches}


def _dimensions(parallelism: Any, world_size: int) -> Any:
    """Return the dimensions of the ranks; creating them checks their product."""
    from torchtitan.distributed import ParallelDims  # noqa: PLC0415 - only the interpreter of the backend has it

    return ParallelDims(
        dp_shard=parallelism.data_parallel_shard_degree,
        dp_replicate=parallelism.data_parallel_replicate_degree,
        cp=parallelism.context_parallel_degree,
        tp=parallelism.tensor_parallel_degree,
        pp=parallelism.pipeline_parallel_degree,
        ep=parallelism.expert_parallel_degree,
        etp=parallelism.expert_tensor_parallel_degree,
        world_size=world_size,
    )


def _check_model_and_batch(config: Any, dimensions: Any) -> int:
    """Check the names of the model and the division of the batch as torchtitan/train.py does; return the passes of a rank per step.

    Raises:
        KeyError: The model has no such flavor.
        ValueError: There is no such model, or the batch cannot be divided.
    """
    from torchtitan.protocols.train_spec import get_train_spec  # noqa: PLC0415 - only the interpreter of the backend has it

    model = get_train_spec(config.model.name).model_args[config.model.flavor]
    model.update_from_config(config)
    at_once = config.training.local_batch_size * dimensions.dp_replicate * dimensions.dp_shard
    total = config.training.global_batch_size
    passes, rest = divmod(total, at_once) if total >= 0 else (1, 0)  # a negative one means one pass
    if rest or not passes:
        raise ValueError(f"global batch size {total} is no multiple of the {at_once} sequences of one pass on all ranks")
    return int(passes)


def main() -> int:
    """Judge every configuration of stdin; return 0, or 1 if one is refused."""
    refused = False
    for line in sys.stdin:
        asked = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, name) for name in asked["files"]]
            for path in paths:
                path.write_text(asked["files"][path.name], "utf-8")
            answer = judge(asked["name"], asked["world_size"], [str(path) for path in paths])
        refused = refused or bool(answer["error"])
        print(json.dumps(answer), flush=True)
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
