"""Fine-tune a model of the family on prompts with responses (SFT): `torchrun … workloads/train/posttrain.py --config FILE key=value …`."""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    # Started by path: Python put this folder in front, whose names are no modules of their own; the root is wanted.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from workloads.train.program import main


def posttrain(argv: list[str]) -> int:
    """Fine-tune on prompts with responses; return the exit code."""
    return main("posttrain", "examples", "Fine-tune a model on prompts with responses; only responses are learnt.", argv)


if __name__ == "__main__":
    sys.exit(posttrain(sys.argv[1:]))
