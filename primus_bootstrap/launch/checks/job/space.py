"""Check the free space in the run folder."""

from __future__ import annotations

import shutil

from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, pass_or_fail, unknown

_GIB = 2**30


def _check(node: Node) -> Verdicts:
    fields = {"expected": f">= {node.min_free_gib}", "unit": "GiB"}
    try:
        free = shutil.disk_usage(node.run_dir).free / _GIB
    except OSError as error:
        return [unknown(str(error), fix=f"check that the run folder exists: ls -ld {node.run_dir}", **fields)]
    fix = f"free space on the file system of {node.run_dir}"
    return [pass_or_fail(good=free >= node.min_free_gib, reason="too little free space", fix=fix, found=f"{free:.1f}", **fields)]


CHECK = Check("space", "The run folder has enough free space.", "statvfs of the run folder", _check)
