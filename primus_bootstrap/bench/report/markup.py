"""Write HTML and SVG in which every text is escaped: only what `tag` made is markup."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# What HTML has no character for; shown as the replacement character.
_NO_HTML = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]")
_VOID = frozenset({"br", "col", "link", "meta"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def markup(child: str) -> Markup:
    """Return a text as markup, escaped unless it is markup already."""
    if isinstance(child, Markup):
        return child
    return Markup(escape(child if child.isascii() and child.isprintable() else _NO_HTML.sub("\ufffd", child)))


def join(children: Sequence[str], between: str = "") -> Markup:
    """Return several texts as one piece of markup."""
    return Markup(markup(between).join([markup(child) for child in children]))


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element; `class_` is written class, `text_anchor` text-anchor, and what is None is left out."""
    pairs = [(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None]
    head = "".join([f' {key}="{markup(value) if isinstance(value, str) else format(value, "g")}"' for key, value in pairs])
    if name in _VOID:
        return Markup(f"<{name}{head}>")
    return Markup(f"<{name}{head}>{join(children)}</{name}>")
