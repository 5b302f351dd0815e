"""primus_bootstrap.lab.torch_folder: which folder with torch the hosts of a lab mount."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.lab import torch_folder
from primus_bootstrap.lab.machine import Machine
from primus_bootstrap.lab.request import Shape
from primus_bootstrap.lab.up import _with_torch

MACHINE = Machine("podman", "5.0", (), "bookworm", ("bookworm", "trixie"), Path("/cache"))


def test_the_folder_depends_on_the_python_and_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another Python or another version of torch is another folder, so that nothing old is used."""
    of_bookworm = torch_folder.torch_mount(MACHINE, ("bookworm", "bookworm"))
    of_trixie = torch_folder.torch_mount(MACHINE, ("trixie",))
    monkeypatch.setattr(torch_folder, "REQUIREMENTS", ("torch==1.0",))
    of_old = torch_folder.torch_mount(MACHINE, ("bookworm",))

    assert of_bookworm.startswith("/cache/torch-python3.11-")
    assert of_bookworm.endswith(":/opt/train")
    assert len({of_bookworm, of_trixie, of_old}) == 3


@pytest.mark.parametrize(
    ("releases", "suites", "fix"),
    [
        (("bookworm", "trixie"), ("bookworm", "trixie"), "use one release: --release bookworm"),
        (("jammy",), ("jammy",), "leave --torch out"),
    ],
    ids=["two Pythons", "too old"],
)
def test_releases_without_one_usable_python_are_an_error(releases: tuple[str, ...], suites: tuple[str, ...], fix: str) -> None:
    """One folder serves all hosts of a lab."""
    with pytest.raises(UsageError) as error:
        torch_folder.torch_mount(replace(MACHINE, suites=suites), releases)

    assert error.value.fix == fix


def test_requirements_are_pinned_by_the_constraints() -> None:
    """The lab runs the versions that the tests ran."""
    assert all("==" in line for line in torch_folder._pinned())


def test_hosts_keep_the_torch_that_they_have() -> None:
    """A repeated `lab up --torch` after an upgrade must not fail because a mount would change."""
    before = Shape(3, 0, ("bookworm",), ("/data:/data", "/cache/torch-python3.11-old:/opt/train"))
    other = Shape(3, 0, ("bookworm",), ("/mine/torch-python3.11-old:/opt/train/lib",))

    assert _with_torch(MACHINE, before) == before
    assert _with_torch(MACHINE, other).mounts[1:] == (torch_folder.torch_mount(MACHINE, ("bookworm",)),)
