"""Load the programs of the role kube_health as modules."""

from __future__ import annotations

import importlib
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FILES = content.roles_dir() / "kube_health" / "files" / "kube_health"
_GATE = content.roles_dir() / "node_health" / "files"
_NAMES = ("api_request", "decide", "node_marks", "report_health", "evaluate_health", "health_gate")


@contextmanager
def health_programs() -> Iterator[Callable[[str], Any]]:
    """Yield a function that loads a program by name; all are unloaded afterwards."""
    sys.path[:0] = [str(_FILES), str(_GATE)]
    try:
        yield importlib.import_module
    finally:
        del sys.path[:2]
        for name in _NAMES:
            sys.modules.pop(name, None)
