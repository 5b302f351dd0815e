"""A topology as a tree of plain values, and the tree as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Item:
    """A part of a topology with the parts in it."""

    kind: str  # NUMA node, PCIe switch, GPU, rack, …
    name: str
    detail: str = ""
    children: tuple[Item, ...] = ()

    @property
    def title(self) -> str:
        """Kind and name."""
        return f"{self.kind} {self.name}".strip()

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"kind": self.kind, "name": self.name, "detail": self.detail, "children": [child.to_json() for child in self.children]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Item:
        """Return the item that `to_json` has written."""
        children = tuple(cls.from_json(child) for child in data["children"])
        return cls(str(data["kind"]), str(data["name"]), str(data["detail"]), children)


def to_text(item: Item) -> str:
    """Return a tree as text."""
    return "\n".join(_lines(item, "", "")) + "\n"


def _lines(item: Item, first: str, rest: str) -> Iterator[str]:
    yield f"{first}{item.title}{'  ' if item.detail else ''}{item.detail}"
    for number, child in enumerate(item.children, 1):
        last = number == len(item.children)
        yield from _lines(child, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}")
