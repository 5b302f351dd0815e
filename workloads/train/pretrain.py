"""Train a language model on text: `torchrun … workloads/train/pretrain.py --config FILE key=value …`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from workloads.common.torch_release import reject_unsupported


def pretrain(argv: list[str]) -> int:
    """Train on text; return the exit code."""
    code = reject_unsupported("pretrain")
    if code:
        return code
    from workloads.train.program import main  # noqa: PLC0415 - other releases lack names that it imports

    return main("pretrain", "text", "Train a language model on text.", argv)


if __name__ == "__main__":
    sys.exit(pretrain(sys.argv[1:]))
