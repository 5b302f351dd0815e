"""Check the size of shared memory."""

from __future__ import annotations

import shutil

from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, pass_or_fail, unknown

_GIB = 2**30
# For data loaders, and for the buffers that RCCL and NCCL share between processes of a node. The default of docker is 64 MiB.
_MIN_GIB = 8


def _check(node: Node) -> Verdicts:
    fields = {"expected": f">= {_MIN_GIB}", "unit": "GiB"}
    try:
        size = shutil.disk_usage(node.host.root / "dev/shm").total / _GIB
    except OSError as error:
        return [unknown(str(error), fix="mount /dev/shm", **fields)]
    fix = "for a container, pass --ipc host or --shm-size 16g"
    return [pass_or_fail(good=size >= _MIN_GIB, reason="shared memory is too small", fix=fix, found=f"{size:.1f}", **fields)]


CHECK = Check("shm", "Shared memory is large enough for data loaders and collectives.", "statvfs of /dev/shm", _check)
