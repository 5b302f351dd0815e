"""Check that the limit of open files is high enough for data loaders and collectives."""

from __future__ import annotations

import resource

from primus_bootstrap.launch.checks.limits import limit
from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, pass_or_fail


def _check(_node: Node) -> Verdicts:
    least = limit("open_files")
    found = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    good = found == resource.RLIM_INFINITY or found >= least.value
    fields = {"expected": f">= {least.value}", "found": str(found), "unit": "files", "source": least.source}
    fix = "apply the phase baseline; for a container, pass --ulimit nofile=65535"
    yield pass_or_fail(good=good, reason="the limit of open files is too low", fix=fix, **fields)


CHECK = Check("open_files", "The limit of open files is high enough.", "getrlimit", _check)
