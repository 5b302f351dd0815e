"""Only workloads/common/torch_release.py knows torch's releases."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
OWNER = ROOT / "workloads" / "common" / "torch_release.py"
# The programs of a backend run with the one release of torch in its environment.
MODULES = sorted(path for path in (ROOT / "workloads").rglob("*.py") if path != OWNER and "backends" not in path.parts)


def guards(text: str) -> Iterator[str]:
    """Yield the places of a module that depend on torch's release: its version, and names of torch that may be missing."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.__version__", "torch.version.__version__"):
            yield f"line {node.lineno}: torch.__version__"
        if isinstance(node, ast.Call) and _asks_for_release(ast.unparse(node)):
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Try) and any("ImportError" in ast.unparse(handler.type or node) for handler in node.handlers):
            yield from (f"line {part.lineno}: {ast.unparse(part)}" for part in node.body if _imports_part_of_torch(part))


def _asks_for_release(call: str) -> bool:
    return call.startswith(("hasattr(torch.", "getattr(torch.nn", "getattr(dist,")) or call.endswith("version('torch')")


def _imports_part_of_torch(node: ast.stmt) -> bool:
    """Return whether a statement imports from torch; `import torch` alone asks whether torch is installed at all."""
    return isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_depends_on_the_release_of_torch(path: Path) -> None:
    """Differences between releases have one place, so that a new release is one change."""
    assert list(guards(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nprint(torch.__version__)",
        "from importlib import metadata\nmetadata.version('torch')",
        "import torch\nhasattr(torch.nn.functional, 'grouped_mm')",
        "import torch.distributed as dist\ngetattr(dist, 'all_gather_single', None)",
        "try:\n    from torch.nn.functional import grouped_mm\nexcept ImportError:\n    grouped_mm = None",
    ],
)
def test_such_a_guard_is_found(text: str) -> None:
    """In each of its forms."""
    assert list(guards(text))
