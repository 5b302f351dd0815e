"""Pass command lines through Megatron-LM's own parser and its checks, without a GPU and without process groups.

Reads one JSON object per line from stdin, {"name": …, "world_size": 16, "argv": […], "environment": {…}}, and prints one
per line: {"name": …, "error": "", "data_parallel_size": 2, "micro_batches": 8}; `error` is the parser's message.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from workloads.backends.megatron.python_version import complete_typing


def judge(name: str, world_size: int, argv: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Return what Megatron-LM makes of a command line on this number of ranks."""
    from megatron.training.arguments import parse_args, validate_args  # noqa: PLC0415 - only the interpreter of the backend has it

    os.environ.update({"WORLD_SIZE": str(world_size), "RANK": "0", **environment})
    sys.argv = ["parse.py", *argv]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            args = parse_args()
            validate_args(args)
        except SystemExit:  # argparse has printed the reason
            return {"name": name, "error": said.getvalue().strip().splitlines()[-1]}
        except Exception as error:  # noqa: BLE001 - its checks raise AssertionError, ValueError, RuntimeError and others
            return {"name": name, "error": f"{type(error).__name__}: {error}"}
    batches = args.global_batch_size // (args.micro_batch_size * args.data_parallel_size)
    return {"name": name, "error": "", "data_parallel_size": args.data_parallel_size, "micro_batches": batches}


def main() -> int:
    """Judge every command line of stdin; return 0, or 1 if one is refused."""
    complete_typing()
    cuda = importlib.import_module("torch").cuda
    if not cuda.is_available():
        # Its checks ask for the device's generation; they do not use the device.
        cuda.get_device_capability = lambda *_device: (9, 0)
        cuda.get_device_properties = lambda *_device: SimpleNamespace(major=9, minor=0)
    refused = False
    for line in sys.stdin:
        asked = json.loads(line)
        answer = judge(asked["name"], asked["world_size"], asked["argv"], asked.get("environment", {}))
        refused = refused or bool(answer["error"])
        print(json.dumps(answer), flush=True)
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
