"""The links between the GPUs of a node, XGMI or NVLink, as far as they can be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.launch.checks import nvidia, xgmi
from primus_bootstrap.launch.checks.model import Node, UnavailableError
from primus_bootstrap.launch.topology.tree import UNKNOWN, Item

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class GpuLinks:
    """The links of a node. `pairs`: the numbers of linked GPUs; `texts`: one text per GPU; `problem`: why they are unknown."""

    kind: str = ""  # XGMI, NVLink, or empty without links
    pairs: tuple[tuple[int, int], ...] = ()
    texts: tuple[str, ...] = ()
    problem: str = ""

    def item(self) -> Item:
        """Return the links as a part of the tree."""
        if self.problem:
            return Item("links between GPUs", "", f"{UNKNOWN}: {self.problem}")
        if not self.kind:
            return Item("links between GPUs", "", "none")
        return Item("links between GPUs", "", self.kind, tuple(Item("GPU", str(number), text) for number, text in enumerate(self.texts)))

    def to_json(self) -> dict[str, Any]:
        """Return them as plain data."""
        return {"kind": self.kind, "pairs": [list(pair) for pair in self.pairs], "texts": list(self.texts), "problem": self.problem}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GpuLinks:
        """Return what `to_json` has written."""
        pairs = tuple((int(one), int(other)) for one, other in data["pairs"])
        return cls(str(data["kind"]), pairs, tuple(map(str, data["texts"])), str(data["problem"]))


def read_links(node: Node) -> GpuLinks:
    """Return the links of a node's GPUs."""
    vendors = {gpu.vendor for gpu in node.gpu_findings.gpus}
    if len(vendors) != 1:
        return GpuLinks(problem="GPUs of several vendors") if vendors else GpuLinks()
    try:
        return _xgmi(node) if vendors == {"amd"} else _nvlink(node)
    except UnavailableError as error:
        return GpuLinks(problem=error.what)


def _xgmi(node: Node) -> GpuLinks:
    cards = [xgmi.card_of(gpu.address) for gpu in node.gpu_findings.gpus]
    linked = xgmi.read_xgmi(node.host, cards).linked
    pairs = tuple((one, other) for one, card in enumerate(cards) for other in range(one + 1, len(cards)) if cards[other] in linked[card])
    others = [[number for pair in pairs if index in pair for number in pair if number != index] for index in range(len(cards))]
    texts = tuple(f"linked to {', '.join(f'GPU {number}' for number in found)}" if found else "no link" for found in others)
    return GpuLinks("XGMI", pairs, texts) if pairs else GpuLinks()


def _nvlink(node: Node) -> GpuLinks:
    """Return how many NVLinks of each GPU are up. NVLink connects to switches, so there are no pairs."""
    if node.host.root != Path("/"):
        raise UnavailableError("nvidia-smi reads NVLinks only on the host itself")
    gpus = nvidia.query(node)
    links = nvidia.nvlinks(node, gpus) or {}
    if not any(links.values()):
        return GpuLinks()
    texts = []
    for gpu in node.gpu_findings.gpus:
        states = next((links.get(found.uuid) for found in gpus if found.address == gpu.address), None)
        texts.append(
            UNKNOWN if states is None else f"{nvidia.active_links(states)} of {len(states)} links active, {states[0] if states else ''}"
        )
    return GpuLinks("NVLink", (), tuple(texts))
