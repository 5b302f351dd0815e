"""primus_bootstrap.inventory.nearby: a verb without a hosts.yaml names the inventories that it can see."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from primus_bootstrap.inventory import find_problems
from primus_bootstrap.inventory.nearby import missing_file_fix

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def write(folder: Path, *, used: float = 0.0) -> None:
    """Write an inventory, whose cluster was changed at this time."""
    folder.mkdir(parents=True)
    (folder / "hosts.yaml").write_text("all:\n")
    if used:
        state = folder / ".primus" / "blue"
        state.mkdir(parents=True)
        os.utime(state, (used, used))


def test_inventories_in_use_are_named_the_newest_first(tmp_path: Path) -> None:
    """Templates, which no verb has used, and hidden folders are not named beside them."""
    write(tmp_path / "inventory/mi300x")
    write(tmp_path / "inventory/lab", used=2_000.0)
    write(tmp_path / "blue", used=1_000.0)
    write(tmp_path / ".cache/red", used=3_000.0)

    assert missing_file_fix(tmp_path) == (
        "name an inventory: inventory/lab, blue (with `ssh`, `exec` and `bundle`: `-i inventory/lab`),"
        " or create a new one: primus-bootstrap init FOLDER"
    )


def test_without_a_used_inventory_all_are_named(tmp_path: Path) -> None:
    """Without any, only `init` is left."""
    empty = missing_file_fix(tmp_path)
    write(tmp_path / "inventory/mi300x")

    assert empty == "check the path, or create a new inventory: primus-bootstrap init FOLDER"
    assert missing_file_fix(tmp_path).startswith("name an inventory: inventory/mi300x (")


def test_every_verb_offers_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the default hosts.yaml, a wrong path, and a folder without the file."""
    write(tmp_path / "inventory/lab", used=1.0)
    monkeypatch.chdir(tmp_path)
    here = type(tmp_path)()
    fixes = [problem.fix for path in ("hosts.yaml", "inventory/lba/hosts.yaml", ".") for problem in find_problems(here / path)]

    assert [fix.startswith("name an inventory: inventory/lab (") for fix in fixes] == [True, True, True]
