"""Fine-tune a model on prompts with responses (SFT): `torchrun … workloads/train/posttrain.py --config FILE key=value …`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from workloads.common.torch_release import reject_unsupported


def posttrain(argv: list[str]) -> int:
    """Fine-tune on prompts with responses; return the exit code."""
    code = reject_unsupported("posttrain")
    if code:
        return code
    from workloads.train.program import main  # noqa: PLC0415 - other releases lack names that it imports

    return main("posttrain", "examples", "Fine-tune a model on prompts with responses; the loss covers the responses only.", argv)


if __name__ == "__main__":
    sys.exit(posttrain(sys.argv[1:]))
