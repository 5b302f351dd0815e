"""primus_bootstrap.launch.checks.vendors: one record a GPU, whatever a neighbour does not say; and no check has a copy of it."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from primus_bootstrap.launch.checks import nvidia, vendors
from primus_bootstrap.launch.checks.model import CannotTellError, passed

if TYPE_CHECKING:
    import pytest

    from primus_bootstrap.core.verdicts import Verdict
    from primus_bootstrap.launch.checks.model import Node
    from primus_bootstrap.launch.detect.gpus import Gpu


class Found:
    """GPUs of both vendors, by address."""

    def __init__(self, **addresses: list[str]) -> None:
        """Keep them by vendor."""
        self.addresses = addresses

    def gpus_of(self, vendor: str) -> list[Any]:
        """Return those of one vendor."""
        return [type("Gpu", (), {"address": address}) for address in self.addresses.get(vendor, [])]


def _amd(_node: Node, gpu: Gpu) -> Verdict:
    if gpu.address == "mute":
        raise CannotTellError("it says nothing", fix="ask again")
    return passed(device=gpu.address)


def test_a_gpu_that_says_nothing_is_unknown_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, what to do, and where it would have stood; nvidia-smi is asked only where there is one of its GPUs."""
    asked: list[object] = []

    def query(node: object) -> tuple[Any, ...]:
        asked.append(node)
        return (type("Smi", (), {"address": "n1"}),)

    monkeypatch.setattr(nvidia, "query", query)
    look = vendors.each_gpu(_amd, lambda one: passed(device=one.address), amd_source="the driver")
    alone = list(look(cast("Node", Found(amd=["mute", "a1"]))))
    none_asked = not asked
    both = list(look(cast("Node", Found(amd=["a1"], nvidia=["n1"]))))

    assert [(one.device, one.verdict, one.reason, one.fix, one.source) for one in alone] == [
        ("mute", "unknown", "it says nothing", "ask again", "the driver"),
        ("a1", "pass", "", "", ""),
    ]
    assert none_asked
    assert [one.device for one in both] == ["a1", "n1"]


def test_no_two_checks_have_a_function_in_common() -> None:
    """What several checks do has one place."""
    where: dict[str, list[str]] = defaultdict(list)
    for path in sorted(Path(vendors.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                where[ast.dump(ast.Module(node.body, []))].append(f"{path.parent.name}/{path.name}:{node.name}")

    assert len(where) > 100
    assert [places for places in where.values() if len(places) > 1] == []
