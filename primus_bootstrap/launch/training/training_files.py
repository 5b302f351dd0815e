"""Read the settings that the arguments of a training task give: files in their order, then key=value, and the names that are no files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.launch.programs import settings_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from primus_bootstrap.launch.programs.settings_file import Given
    from primus_bootstrap.launch.tasks import Request

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Files:
    """The settings of a run, weakest first; `names` are the values of --config that are no files: presets, recipes, models."""

    given: tuple[Given, ...]
    names: tuple[str, ...]
    remarks: tuple[str, ...]

    @staticmethod
    def is_path(name: str) -> bool:
        """Return whether a name is meant as a file."""
        return "/" in name or Path(name).suffix in _SUFFIXES


def read_files(request: Request, configs: Sequence[str], arguments: Sequence[str]) -> Files:
    """Read the files that are on this machine.

    Raises:
        UsageError: A file cannot be read, or an argument is not key=value.
    """
    given: list[Given] = []
    names: list[str] = []
    remarks: list[str] = []
    for name in configs:
        path = request.find(request.cwd / name)
        if path is None and Files.is_path(name):
            remarks.append(f"--config {name} is in no mounted folder of this machine, so it is not checked before the start")
        elif path is not None and path.is_file():
            given += settings_file.from_file(path, name)
        else:
            names.append(name)
    given += map(settings_file.from_argument, arguments)
    return Files(tuple(given), tuple(names), tuple(remarks))
