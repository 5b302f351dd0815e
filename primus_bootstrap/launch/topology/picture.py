"""Draw a topology as SVG: nested boxes for the tree, and a circle of GPUs with their links. An HTML page adds the tree as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from primus_bootstrap.launch.topology.tree import UNKNOWN, Item

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.launch.topology.gpu_links import GpuLinks

_PAD, _HEAD, _LINE, _LEAF_WIDTH = 8.0, 22.0, 14.0, 300.0  # pixels
_CHARACTER = 6.2  # width of a character of the small text in pixels
_COLUMNS = {"node": 2, "fabric": 4, "NUMA node": 2, "rack": 1, "switch": 1}
_FILLS = {
    "node": "#f6f7f9",
    "fabric": "#f6f7f9",
    "NUMA node": "#e8eef7",
    "rack": "#e8eef7",
    "PCIe host bridge": "#eef3ea",
    "PCIe switch": "#dfead6",
    "switch": "#dfead6",
    "GPU": "#fde7c8",
    "NIC": "#d9e8fb",
    "host": "#ffffff",
}
_RADIUS, _DOT = 130.0, 20.0


@dataclass(frozen=True)
class _Box:
    """An item with its size and the positions of its children in it."""

    item: Item
    width: float
    height: float
    children: tuple[tuple[float, float, _Box], ...] = ()


def to_svg(trees: Sequence[Item], links: GpuLinks) -> str:
    """Return the picture: the trees, one below the other, and a circle with the pairs of linked GPUs, if there are any."""
    boxes = [_box(tree) for tree in trees]
    circle = 2 * _RADIUS + 4 * _DOT + _HEAD if links.pairs else 0.0
    width = max([*(box.width for box in boxes), circle]) + 2 * _PAD
    parts: list[str] = []
    top = _PAD
    for box in boxes:
        parts += _draw(box, _PAD, top)
        top += box.height + _PAD
    if links.pairs:
        parts += _circle(links, top)
        top += circle
    size = f'width="{width:.0f}" height="{top:.0f}" viewBox="0 0 {width:.0f} {top:.0f}"'
    style = 'font-family="sans-serif" font-size="12" role="img" aria-label="topology"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>"]) + "\n"


def to_html(trees: Sequence[Item], links: GpuLinks, title: str, text: str) -> str:
    """Return a page with the picture, and the topology as text."""
    style = "body{font-family:sans-serif;margin:1.5rem;color:#222}pre{overflow:auto}svg{max-width:100%;height:auto}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style></head>\n'
        f"<body><h1>{escape(title)}</h1>\n{to_svg(trees, links)}<pre>{escape(text)}</pre></body></html>\n"
    )


def _box(item: Item) -> _Box:
    if not item.children:
        return _Box(item, max(_LEAF_WIDTH, _CHARACTER * len(item.title) + 2 * _PAD), 2 * _LINE + _PAD)
    boxes = [_box(child) for child in item.children]
    columns = min(len(boxes), _COLUMNS.get(item.kind, 1))
    widths = [max(box.width for box in boxes[column::columns]) for column in range(columns)]
    placed: list[tuple[float, float, _Box]] = []
    top = _HEAD + (_LINE if item.detail else 0.0)
    for start in range(0, len(boxes), columns):
        row = boxes[start : start + columns]
        placed += [(_PAD + sum(widths[:index]) + index * _PAD, top, box) for index, box in enumerate(row)]
        top += max(box.height for box in row) + _PAD
    width = sum(widths) + (columns + 1) * _PAD
    return _Box(item, max(width, _CHARACTER * max(len(item.title), len(item.detail)) + 2 * _PAD), top, tuple(placed))


def _draw(box: _Box, left: float, top: float) -> Iterator[str]:
    item = box.item
    dashed = ' stroke-dasharray="4 3"' if UNKNOWN in (item.name, item.detail.partition(":")[0]) else ""
    shape = f'x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="4"'
    tooltip = escape(f"{item.title} {item.detail}".strip())
    yield f'<rect {shape} fill="{_FILLS.get(item.kind, "#ffffff")}" stroke="#8a94a3"{dashed}><title>{tooltip}</title></rect>'
    yield f'<text x="{left + _PAD:.1f}" y="{top + 15:.1f}" font-weight="bold">{escape(item.title)}</text>'
    if item.detail:
        room = int((box.width - 2 * _PAD) / _CHARACTER)
        text = item.detail if len(item.detail) <= room else f"{item.detail[: room - 1]}…"
        yield f'<text x="{left + _PAD:.1f}" y="{top + 15 + _LINE:.1f}" font-size="10.5" fill="#444">{escape(text)}</text>'
    for x, y, child in box.children:
        yield from _draw(child, left + x, top + y)


def _circle(links: GpuLinks, top: float) -> Iterator[str]:
    count = max(len(links.texts), 1)
    middle_x, middle_y = _PAD + _RADIUS + 2 * _DOT, top + _HEAD + _RADIUS + _DOT
    angles = [2 * math.pi * number / count - math.pi / 2 for number in range(count)]
    points = [(middle_x + _RADIUS * math.cos(angle), middle_y + _RADIUS * math.sin(angle)) for angle in angles]
    yield f'<text x="{_PAD:.1f}" y="{top + 15:.1f}" font-weight="bold">{escape(links.kind)} links between GPUs</text>'
    for one, other in links.pairs:
        (x1, y1), (x2, y2) = points[one], points[other]
        yield f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#c07a18"/>'
    for number, (x, y) in enumerate(points):
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{_DOT:.0f}" fill="{_FILLS["GPU"]}" stroke="#8a94a3"/>'
        yield f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">{number}</text>'
