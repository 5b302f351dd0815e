"""What a lab is to have: what was asked for, what it remembers, what hosts.yaml names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.lab_values import LabError
from primus_bootstrap.lab.request import Request, Shape, decide_shape, recall, remember

if TYPE_CHECKING:
    from pathlib import Path

BOTH = ("bookworm", "trixie")


@pytest.mark.parametrize(
    ("request_", "remembered", "named", "expected"),
    [
        pytest.param(Request(), None, 0, Shape(3, 0, ("bookworm",)), id="new: three of the default release"),
        pytest.param(Request(), None, 5, Shape(5, 0, ("bookworm",)), id="as many as hosts.yaml names"),
        pytest.param(Request(nodes=4, spares=1, releases=BOTH), None, 0, Shape(4, 1, BOTH), id="as asked for"),
        pytest.param(Request(releases=("all",)), None, 0, Shape(3, 0, BOTH), id="every release"),
        pytest.param(Request(), Shape(2, 1, BOTH), 2, Shape(2, 1, BOTH), id="as it was"),
        pytest.param(Request(spares=0), Shape(2, 1, BOTH), 2, Shape(2, 0, BOTH), id="one thing asked for, the rest as it was"),
        pytest.param(Request(), Shape(2, 1, BOTH), 3, Shape(2, 1, BOTH), id="a spare was added to hosts.yaml"),
        pytest.param(
            Request(spares=0), Shape(2, 1, BOTH), 3, Shape(2, 1, BOTH), id="a host of hosts.yaml is never dropped with the spares"
        ),
        pytest.param(Request(), Shape(3, 0, BOTH), 2, Shape(3, 0, BOTH), id="a host was taken out of hosts.yaml"),
        pytest.param(Request(nodes=2), Shape(3, 0, BOTH), 3, Shape(2, 0, BOTH), id="fewer asked for"),
    ],
)
def test_the_shape_follows_from_what_is_asked_and_what_was(
    request_: Request, remembered: Shape | None, named: int, expected: Shape
) -> None:
    """What is asked for wins over what the lab remembers, and that over what hosts.yaml names."""
    assert decide_shape(request_, remembered, named=named, available=BOTH) == expected


def test_a_release_that_cannot_be_built_is_refused() -> None:
    """The message names what this machine can build."""
    with pytest.raises(LabError) as caught:
        decide_shape(Request(releases=("noble",)), None, named=0, available=BOTH)

    assert "noble" in caught.value.what
    assert caught.value.fix == "choose from: bookworm, trixie"


def test_mounts_are_kept_until_others_are_asked_for(tmp_path: Path) -> None:
    """A folder is remembered by its whole path, each once; what is not asked for stays as it was."""
    text = f"{tmp_path}/../{tmp_path.name}:/opt/train/"
    first = decide_shape(Request(mounts=(text, text)), None, named=0, available=BOTH)

    assert first.mounts == (f"{tmp_path}:/opt/train",)
    assert decide_shape(Request(), first, named=0, available=BOTH).mounts == first.mounts
    assert decide_shape(Request(mounts=()), first, named=0, available=BOTH).mounts == ()


@pytest.mark.parametrize("text", ["/nowhere/at/all:/opt", "/usr", "/usr:opt", "/usr:/", "/usr:/opt/../etc", ":/opt"])
def test_a_mount_that_cannot_be_made_is_refused(text: str) -> None:
    """The engine would say so only in the middle of making hosts."""
    with pytest.raises(LabError, match="--mount"):
        decide_shape(Request(mounts=(text,)), None, named=0, available=BOTH)


def test_a_lab_of_an_earlier_version_has_no_mounts(tmp_path: Path) -> None:
    """Its file does not name any, and is read all the same."""
    (tmp_path / "lab.json").write_text('{"schema": "primus.lab/1", "nodes": 2, "spares": 0, "releases": ["bookworm"]}')

    assert recall(tmp_path) == Shape(2, 0, ("bookworm",))


def test_fewer_than_no_spares_are_refused() -> None:
    """A negative number is a slip, not zero."""
    with pytest.raises(LabError, match="-1 spare"):
        decide_shape(Request(spares=-1), None, named=0, available=BOTH)


def test_a_shape_is_remembered_once(tmp_path: Path) -> None:
    """What was written is what is read; the same again writes nothing."""
    shape = Shape(2, 1, BOTH, ("/srv/train:/opt/train",))

    assert recall(tmp_path) is None
    assert remember(tmp_path, shape) is True
    assert remember(tmp_path, shape) is False
    assert recall(tmp_path) == shape


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"nodes": "x", "spares": 0, "releases": []}'])
def test_a_file_that_is_not_ours_is_named(tmp_path: Path, text: str) -> None:
    """A damaged file is an error that says which file to remove, never a guess."""
    (tmp_path / "lab.json").write_text(text)

    with pytest.raises(LabError) as caught:
        recall(tmp_path)

    assert str(tmp_path / "lab.json") in caught.value.fix
