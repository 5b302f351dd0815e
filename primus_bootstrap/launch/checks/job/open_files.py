"""May a program open as many files as data loaders and collectives need?"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import Check, judged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _look(_node: Node) -> Iterator[Verdict]:
    least = limit("open_files")
    found = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    good = found == resource.RLIM_INFINITY or found >= least.value
    fields = {"expected": f">= {least.value}", "found": str(found), "unit": "files", "source": least.source}
    yield judged(
        good=good, reason="too few files may be open", fix="apply the phase baseline, or in a container --ulimit nofile=65535", **fields
    )


CHECK = Check("open_files", "A program may open as many files as it needs.", "getrlimit", _look)
