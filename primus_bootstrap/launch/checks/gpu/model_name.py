"""Check that every GPU is of the expected model."""

from __future__ import annotations

from primus_bootstrap.launch.checks.model import GPU, Check, Node, Verdicts, pass_or_fail, passed, unknown
from primus_bootstrap.launch.detect import gpus

_FIX = "compare with `lspci -nn`; correct gpu_env_model in hosts.yaml, or replace the card"


def _check(node: Node) -> Verdicts:
    found, expected = node.gpu_findings, node.expected.get("gpu_model")
    source = node.expected.source("gpu_model") or "launch/data/gpus.yml"
    if found.verdict == gpus.UNKNOWN:
        yield unknown(found.reason, expected=expected or "a known model", source=source, fix="see `lspci -nn`")
        return
    names = sorted({gpu.name for gpu in found.gpus})
    fields = {"expected": expected or "one model", "found": ", ".join(names), "source": source}
    if expected is None:
        yield pass_or_fail(good=found.verdict == gpus.OK, reason=found.reason, fix=_FIX, **fields)
        return
    # For a PCI id that products share, gpu.json contains all of them: MI250/MI250X.
    others = [gpu for gpu in found.gpus if not set(expected.split("/")) & set(gpu.models)]
    if not others:
        yield passed(**fields)
        return
    reason = "not the expected model: " + ", ".join(f"{gpu.address} ({gpu.name or gpu.device_id})" for gpu in others)
    yield pass_or_fail(good=False, reason=reason, fix=_FIX, **fields)


CHECK = Check("gpu_model", "Every GPU is of the expected model.", "PCI ids in sysfs", _check, needs=(GPU,))
