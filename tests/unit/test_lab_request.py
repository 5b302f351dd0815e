"""Test how the shape of a lab follows from the options, the saved shape and hosts.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.lab.lab_values import LabError
from primus_bootstrap.lab.request import Request, Shape, decide_shape, load_shape, save_shape

if TYPE_CHECKING:
    from pathlib import Path

BOTH = ("bookworm", "trixie")


@pytest.mark.parametrize(
    ("request_", "remembered", "named", "expected"),
    [
        pytest.param(Request(), None, 0, Shape(3, 0, ("bookworm",)), id="new lab"),
        pytest.param(Request(), None, 5, Shape(5, 0, ("bookworm",)), id="as many as hosts.yaml names"),
        pytest.param(Request(nodes=4, spares=1, releases=BOTH), None, 0, Shape(4, 1, BOTH), id="all options"),
        pytest.param(Request(releases=("all",)), None, 0, Shape(3, 0, BOTH), id="every release"),
        pytest.param(Request(), Shape(2, 1, BOTH), 2, Shape(2, 1, BOTH), id="saved shape"),
        pytest.param(Request(spares=0), Shape(2, 1, BOTH), 2, Shape(2, 0, BOTH), id="one option"),
        pytest.param(Request(), Shape(2, 1, BOTH), 3, Shape(2, 1, BOTH), id="a spare was added to hosts.yaml"),
        pytest.param(Request(spares=0), Shape(2, 1, BOTH), 3, Shape(2, 1, BOTH), id="a host in hosts.yaml is not removed with the spares"),
        pytest.param(Request(), Shape(3, 0, BOTH), 2, Shape(3, 0, BOTH), id="a host was removed from hosts.yaml"),
        pytest.param(Request(nodes=2), Shape(3, 0, BOTH), 3, Shape(2, 0, BOTH), id="fewer hosts"),
    ],
)
def test_options_override_the_saved_shape_and_hosts_yaml(request_: Request, remembered: Shape | None, named: int, expected: Shape) -> None:
    """Options override the saved shape, which overrides the number of hosts in hosts.yaml."""
    assert decide_shape(request_, remembered, named=named, available=BOTH) == expected


def test_unavailable_release_is_refused() -> None:
    """The fix lists the releases that this machine can build."""
    with pytest.raises(UsageError) as caught:
        decide_shape(Request(releases=("noble",)), None, named=0, available=BOTH)

    assert "noble" in caught.value.what
    assert caught.value.fix == "choose from: bookworm, trixie"


def test_mounts_stay_until_the_option_changes_them(tmp_path: Path) -> None:
    """Mounts are saved once each, with absolute paths. Without the option they stay."""
    text = f"{tmp_path}/../{tmp_path.name}:/opt/train/"
    first = decide_shape(Request(mounts=(text, text)), None, named=0, available=BOTH)

    assert first.mounts == (f"{tmp_path}:/opt/train",)
    assert decide_shape(Request(), first, named=0, available=BOTH).mounts == first.mounts
    assert decide_shape(Request(mounts=()), first, named=0, available=BOTH).mounts == ()


@pytest.mark.parametrize("text", ["/nowhere/at/all:/opt", "/usr", "/usr:opt", "/usr:/", "/usr:/opt/../etc", ":/opt"])
def test_invalid_mount_is_refused(text: str) -> None:
    """A missing folder or a target that is not an absolute path raises UsageError."""
    with pytest.raises(UsageError, match="--mount"):
        decide_shape(Request(mounts=(text,)), None, named=0, available=BOTH)


def test_file_of_an_earlier_version_has_no_mounts(tmp_path: Path) -> None:
    """A file without mounts is read."""
    (tmp_path / "lab.json").write_text('{"schema": "primus.lab/1", "nodes": 2, "spares": 0, "releases": ["bookworm"]}')

    assert load_shape(tmp_path) == Shape(2, 0, ("bookworm",))


def test_negative_number_of_spares_is_refused() -> None:
    """A negative number raises UsageError."""
    with pytest.raises(UsageError, match="-1 spare"):
        decide_shape(Request(spares=-1), None, named=0, available=BOTH)


def test_shape_is_saved_and_loaded(tmp_path: Path) -> None:
    """The loaded shape equals the saved one; saving the same shape again writes nothing."""
    shape = Shape(2, 1, BOTH, ("/srv/train:/opt/train",))

    assert load_shape(tmp_path) is None
    assert save_shape(tmp_path, shape) is True
    assert save_shape(tmp_path, shape) is False
    assert load_shape(tmp_path) == shape


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"nodes": "x", "spares": 0, "releases": []}'])
def test_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    """The fix removes the damaged file."""
    (tmp_path / "lab.json").write_text(text)

    with pytest.raises(LabError) as caught:
        load_shape(tmp_path)

    assert str(tmp_path / "lab.json") in caught.value.fix
