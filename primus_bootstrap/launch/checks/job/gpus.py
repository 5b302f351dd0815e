"""Check the number of GPUs on the PCI bus."""

from __future__ import annotations

from primus_bootstrap.launch.checks.model import Check, Node, Verdicts, pass_or_fail, passed, skipped, unknown
from primus_bootstrap.launch.detect import gpus


def _check(node: Node) -> Verdicts:
    expected = node.expected.get("gpus")
    if node.expected.problem and expected is None:
        return [unknown(f"the expected number is not known: {node.expected.problem}", fix="apply the phase gpu, which writes the file")]
    findings = node.gpu_findings
    fields = {
        "expected": "" if expected is None else str(expected),
        "found": f"{len(findings.gpus)} x {findings.name}".rstrip(" x"),
        "source": node.expected.source("gpus"),
    }
    fix = "check the node's PCI devices (lspci) and the GPU driver"
    if findings.verdict == gpus.UNKNOWN:
        return [unknown(findings.reason, fix=fix, **fields)]
    if findings.verdict == gpus.MIXED:
        return [pass_or_fail(good=False, reason=findings.reason, fix=fix, **fields)]
    if expected is not None and len(findings.gpus) != expected:
        fix = "search for a GPU that is missing on the PCI bus: lspci, dmesg"
        return [pass_or_fail(good=False, reason="unexpected number of GPUs", fix=fix, **fields)]
    return [passed(**fields) if findings.gpus else skipped(findings.reason, **fields)]


CHECK = Check("gpus", "The expected number of GPUs is on the PCI bus, all of one known model.", "PCI ids in sysfs", _check)
