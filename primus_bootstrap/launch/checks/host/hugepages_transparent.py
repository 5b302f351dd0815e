"""Check the setting of transparent huge pages."""

from __future__ import annotations

import re

from primus_bootstrap.launch.checks.kernel_settings import compare_setting
from primus_bootstrap.launch.checks.model import MACHINE, Check, Node, UnavailableError, Verdicts, require_text, skipped


def _check(node: Node) -> Verdicts:
    path = node.host.path("sys", "kernel", "mm", "transparent_hugepage", "enabled")
    if not path.exists():
        yield skipped("this kernel has no transparent huge pages")
        return
    match = re.search(r"\[(\w+)\]", require_text(path))  # always [madvise] never
    if match is None:
        raise UnavailableError(f"{path} does not mark the active setting")
    yield compare_setting(node, "transparent_hugepages", match[1], reason=f"transparent huge pages are {match[1]}")


CHECK = Check(
    "transparent_hugepages",
    "Transparent huge pages have the expected setting.",
    "/sys/kernel/mm/transparent_hugepage",
    _check,
    needs=(MACHINE,),
)
