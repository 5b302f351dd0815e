"""primus_bootstrap.launch.tasks.train_pretrain: a value of --config must be a file or a preset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.tasks import Program, Request, train_posttrain, train_pretrain

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = (train_pretrain.program, train_posttrain.program)


def request(cwd: Path, *arguments: str, workloads: Path = ROOT / "workloads", prepared: bool = False) -> Request:
    """Return a request with these arguments."""
    return Request(arguments, "python3", lambda: workloads, cwd=cwd, prepared=prepared)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    "arguments", [("--config", "debug-dens"), ("--config=debug-dens",), ("--config", "debug-moe", "--config", "debug-dens")]
)
def test_an_unknown_preset_is_an_error_with_the_nearest_name(
    program: Callable[[Request], Program], arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """Every --config is checked, in both forms."""
    with pytest.raises(UsageError, match="--config debug-dens: no such file or preset") as raised:
        program(request(tmp_path, *arguments))

    assert raised.value.fix.startswith("did you mean debug-dense?")


def test_presets_and_files_are_accepted(tmp_path: Path) -> None:
    """A path is relative to the working folder. A missing value is left to the trainer."""
    (tmp_path / "mine.yaml").touch()
    for arguments in (("--config", "llama-3.1-8b"), ("--config=mine.yaml",), ("--config", str(tmp_path / "mine.yaml")), ("--config",)):
        assert train_pretrain.program(request(tmp_path, *arguments)).arguments == arguments


def test_a_missing_file_is_accepted_if_a_hook_may_write_it(tmp_path: Path) -> None:
    """A misspelt preset is not."""
    assert train_pretrain.program(request(tmp_path, "--config", "mine.yaml", prepared=True))
    for name, prepared in (("mine.yaml", False), ("debug-dens", True)):
        with pytest.raises(UsageError, match="no such file or preset"):
            train_pretrain.program(request(tmp_path, "--config", name, prepared=prepared))


def test_nothing_is_checked_without_a_readable_folder_of_presets(tmp_path: Path) -> None:
    """The workloads may be elsewhere, for example in a container."""
    assert train_pretrain.program(request(tmp_path, "--config", "theirs", workloads=tmp_path / "none"))
