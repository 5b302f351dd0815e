"""Shared by tests of the inventory: the shipped roles with a demo role, and inventories in temporary folders."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap import content
from primus_bootstrap.inventory.rules import required
from primus_bootstrap.inventory.schema import names, specs

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

DATA = Path(__file__).parent.parent / "data"


@contextlib.contextmanager
def demo_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use the shipped roles and playbooks together with those of tests/data/content."""
    for kind in ("roles", "playbooks"):
        (folder / kind).mkdir(parents=True)
        for source in (content.content_root() / kind, DATA / "content" / kind):
            for path in source.iterdir():
                (folder / kind / path.name).symlink_to(path)
    monkeypatch.setattr(content, "roles_dir", lambda: folder / "roles")
    monkeypatch.setattr(content, "playbooks_dir", lambda: folder / "playbooks")
    clear_caches()
    try:
        yield
    finally:
        monkeypatch.undo()
        clear_caches()


def clear_caches() -> None:
    """Clear the caches of the roles and their variables."""
    for cached in (specs.load_options, names.known_variables, names.nearest_variable, required._plays):
        cached.cache_clear()


def write_inventory(folder: Path, hosts: str, **files: str) -> Path:
    """Write hosts.yaml and other files, whose names have `__` in place of `/`; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hosts.yaml").write_text(hosts, encoding="utf-8")
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
