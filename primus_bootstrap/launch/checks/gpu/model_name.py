"""Is every GPU of the model that this node should have?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.launch.checks.model import GPU, Check, judged, passed, unknown
from primus_bootstrap.launch.detect import gpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node

_FIX = "see `lspci -nn`; correct the inventory, or have the card replaced"


def _look(node: Node) -> Iterator[Verdict]:
    found, wanted = node.gpu_findings, node.expected.get("gpu_model")
    source = node.expected.source("gpu_model") or "launch/data/gpus.yml"
    if found.verdict == gpus.UNKNOWN:
        yield unknown(found.reason, expected=wanted or "a known model", source=source, fix="see `lspci -nn`")
        return
    names = sorted({gpu.name for gpu in found.gpus})
    fields = {"expected": wanted or "one model", "found": ", ".join(names), "source": source}
    if wanted is None:
        yield judged(good=found.verdict == gpus.OK, reason=found.reason, fix=_FIX, **fields)
        return
    # gpu.json writes an id that products share as MI250/MI250X.
    strangers = [gpu for gpu in found.gpus if not set(wanted.split("/")) & set(gpu.models)]
    if not strangers:
        yield passed(**fields)
        return
    reason = "not the expected model: " + ", ".join(f"{gpu.address} ({gpu.name or gpu.device_id})" for gpu in strangers)
    yield judged(good=False, reason=reason, fix=_FIX, **fields)


CHECK = Check("gpu_model", "Every GPU is of the expected model.", "PCI ids in sysfs", _look, needs=(GPU,))
