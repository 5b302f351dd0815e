"""Has this Python torch?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch import node_preflight
from primus_bootstrap.launch.checks.model import Check

if TYPE_CHECKING:
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.records import Record


def _look(_node: Node) -> list[Record]:
    return [node_preflight.torch_version()]


CHECK = Check("torch", "The run's Python has torch.", "the packages of this Python", _look)
