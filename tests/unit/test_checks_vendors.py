"""primus_bootstrap.launch.checks.vendors: one record per GPU; and no two checks contain the same function."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from primus_bootstrap.launch.checks import nvidia, vendors
from primus_bootstrap.launch.checks.model import UnavailableError, passed

if TYPE_CHECKING:
    import pytest

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu


class FakeNode:
    """A node with GPUs of both vendors."""

    def __init__(self, **addresses: list[str]) -> None:
        """Store the addresses by vendor."""
        self.addresses = addresses

    def gpus_of(self, vendor: str) -> list[Any]:
        """Return the GPUs of one vendor."""
        return [type("Gpu", (), {"address": address}) for address in self.addresses.get(vendor, [])]


def _amd(_node: Node, gpu: Gpu) -> Verdict:
    if gpu.address == "a0":
        raise UnavailableError("no value", fix="read it again")
    return passed(device=gpu.address)


def _nvidia(one: nvidia.SmiGpu) -> Verdict:
    if one.address == "n0":
        raise UnavailableError("no value either", fix="read that again")
    return passed(device=one.address)


def test_a_gpu_without_a_value_is_unknown_and_the_others_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has reason, fix and source. nvidia-smi runs only on nodes with NVIDIA GPUs."""
    queries: list[object] = []

    def query(node: object) -> tuple[Any, ...]:
        queries.append(node)
        return tuple(type("SmiGpu", (), {"address": address, "serial": f"s-{address}"}) for address in ("n0", "n1"))

    monkeypatch.setattr(nvidia, "query", query)
    check = vendors.check_each_gpu(_amd, _nvidia, ("the driver", "nvidia-smi"))
    amd_only = list(check(cast("Node", FakeNode(amd=["a0", "a1"]))))
    queries_on_amd = len(queries)
    both = list(check(cast("Node", FakeNode(amd=["a1"], nvidia=["n1"]))))

    assert [(one.device, one.verdict, one.reason, one.fix, one.source) for one in amd_only] == [
        ("a0", "unknown", "no value", "read it again", "the driver"),
        ("a1", "pass", "", "", ""),
    ]
    assert queries_on_amd == 0
    assert [(one.device, one.serial, one.verdict, one.reason, one.source) for one in both] == [
        ("a1", "", "pass", "", ""),
        ("n0", "s-n0", "unknown", "no value either", "nvidia-smi"),
        ("n1", "", "pass", "", ""),
    ]


def test_no_two_checks_contain_the_same_function() -> None:
    """Code that several checks need is in a shared module."""
    where: dict[str, list[str]] = defaultdict(list)
    for path in sorted(Path(vendors.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                where[ast.dump(ast.Module(node.body, []))].append(f"{path.parent.name}/{path.name}:{node.name}")

    assert len(where) > 100
    assert [functions for functions in where.values() if len(functions) > 1] == []
