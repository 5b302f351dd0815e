"""Are transparent huge pages set as expected?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.kernel_settings import compare
from primus_bootstrap.launch.checks.model import MACHINE, CannotTellError, Check, skipped, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node


def _look(node: Node) -> Iterator[Verdict]:
    path = node.host.path("sys", "kernel", "mm", "transparent_hugepage", "enabled")
    if not path.exists():
        yield skipped("this kernel has no transparent huge pages")
        return
    match = re.search(r"\[(\w+)\]", text_of(path))  # always [madvise] never
    if match is None:
        raise CannotTellError(f"{path} marks no choice")
    yield compare(node, "transparent_hugepages", match[1], reason=f"transparent huge pages are {match[1]}")


CHECK = Check(
    "transparent_hugepages", "Transparent huge pages are set as expected.", "/sys/kernel/mm/transparent_hugepage", _look, needs=(MACHINE,)
)
