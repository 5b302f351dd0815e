"""Check that torch is installed in this Python."""

from __future__ import annotations

import sys
from importlib import metadata

from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, pass_or_fail, passed


def _check(_node: Node) -> Verdicts:
    try:
        return [passed(found=metadata.version("torch"))]
    except metadata.PackageNotFoundError:
        fix = "pass --venv or --python with the Python that has torch"
        return [pass_or_fail(good=False, reason=f"{sys.executable} has no torch", fix=fix, found="none")]


CHECK = Check("torch", "torch is installed in the run's Python.", "the packages of this Python", _check)
