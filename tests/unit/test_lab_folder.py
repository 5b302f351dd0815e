"""Test that a verb does not touch a lab that another folder, for example another clone, has created."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.lab import containers, faults, up
from primus_bootstrap.lab.containers import Container, other_folder
from primus_bootstrap.lab.lab_values import LabError, lab_command
from primus_bootstrap.lab.request import Request

if TYPE_CHECKING:
    from collections.abc import Callable


def a_container(folder: str) -> Container:
    """Return node1 of a lab from a folder."""
    return Container("primus-lab-node1", "node1", "running", ("primus-lab",), "10.187.1.11", "image", folder)


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A running lab `lab` of another folder; every change of it fails the test."""
    folder = tmp_path / "other clone" / "inventory" / "lab"

    def fail(*_arguments: Any) -> None:
        pytest.fail("the lab was changed")

    for module in (up, faults):
        monkeypatch.setattr(module, "inspect_machine", lambda: SimpleNamespace(suites=("bookworm",)))
    monkeypatch.setattr(containers, "list_containers", lambda _, name: {"node1": a_container(str(folder))} if name == "lab" else {})
    for name in ("remove", "remove_network", "kill", "pause", "disconnect", "start"):
        monkeypatch.setattr(containers, name, fail)
    return folder


def down(folder: Path) -> None:
    """Remove the lab `lab` of a folder."""
    up.down("lab", folder, purge=True, progress=print)


def kill(folder: Path) -> None:
    """Kill node1 of the lab `lab` of a folder."""
    faults.apply_fault("kill", "lab", folder, node="node1")


def heal(folder: Path) -> None:
    """Repair node1 of the lab `lab` of a folder."""
    faults.apply_fault("heal", "lab", folder, node="node1")


@pytest.mark.parametrize(("verb", "words"), [(down, "down --purge"), (kill, "fault kill node1"), (heal, "fault heal node1")])
def test_lab_of_another_folder_is_not_changed(other: Path, tmp_path: Path, verb: Callable[[Path], None], words: str) -> None:
    """The error names the folder of the lab, and the fix is the command for that lab, quoted for the shell."""
    with pytest.raises(LabError) as caught:
        verb(tmp_path)

    assert f"was created from the folder {other}, not from {tmp_path}" in caught.value.what
    assert f"primus-bootstrap lab {words} --dir '{other}'" in caught.value.fix


def test_up_offers_another_name(other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fix of `lab up` names a free name and does not touch the other lab."""
    monkeypatch.setattr(containers, "network_subnet", lambda *_: None)
    monkeypatch.setattr(containers, "taken_subnets", lambda *_: ())
    monkeypatch.setattr(containers, "refuse_foreign_containers", lambda *_: None)

    with pytest.raises(LabError) as caught:
        up.up("lab", tmp_path / "new", Request(), progress=print, lock_cluster=lambda _: pytest.fail("locked"))

    assert str(other) in caught.value.what
    assert caught.value.fix.endswith("primus-bootstrap lab up --name lab2")
    assert not (tmp_path / "new").exists()


def test_the_same_folder_by_another_path_is_no_other_folder(tmp_path: Path) -> None:
    """Paths are compared without `..` and symbolic links; a container without a label belongs to no folder."""
    (tmp_path / "link").symlink_to(tmp_path)
    found = {"node1": a_container(str(tmp_path / "link" / "x" / "..")), "node2": a_container("")}

    assert other_folder(found, tmp_path) == ""
    assert other_folder(found, tmp_path / "y") == str(tmp_path / "link" / "x" / "..")


def test_commands_in_messages_select_the_lab() -> None:
    """Only options that differ from the defaults are printed."""
    assert lab_command("down", "lab", Path("inventory/lab")) == "primus-bootstrap lab down"
    assert lab_command("down", "two", Path("inventory/two").absolute()) == "primus-bootstrap lab down --name two"
    assert lab_command("status", "lab", Path("/x y")) == "primus-bootstrap lab status --dir '/x y'"
