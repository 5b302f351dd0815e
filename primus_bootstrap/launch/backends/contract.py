"""What an adapter of a training backend offers to the launcher.

`render` turns a run into a command; `known_keys` are the settings that the pinned version of the backend accepts. The other two parts of an
adapter need the backend's own interpreter, so they are programs in workloads/backends/<name>: `pretrain.py` starts the backend and writes
steps.jsonl from its log, and `parse.py` passes rendered settings through the backend's real parser without training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from primus_bootstrap.launch.recipes.model_shape import ModelShape
    from primus_bootstrap.launch.recipes.recipe import Recipe


@dataclass(frozen=True)
class Run:
    """One training run. `settings` are the user's, by their common names such as train.steps; `keys` are those of the backend."""

    recipe: Recipe
    shape: ModelShape
    settings: Mapping[str, Any]
    keys: Mapping[str, Any]
    run_dir: Path


@dataclass(frozen=True)
class Rendered:
    """The arguments of the backend's program, files to write into the run folder (name and text), and variables to set."""

    argv: tuple[str, ...]
    files: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # remarks for the plan


@dataclass(frozen=True)
class Key:
    """A setting of the backend. `kind` is bool, int, float, str, list or any; `choices` are the only values, if there are any."""

    name: str
    kind: str
    default: Any = None
    choices: tuple[Any, ...] = ()


class Backend(Protocol):
    """An adapter."""

    name: str
    version: str  # the pinned version

    def known_keys(self) -> Mapping[str, Key]:
        """Return the accepted settings by name, from the data file of the pinned version."""

    def render(self, run: Run) -> Rendered:
        """Return the command of a run.

        Raises:
            PrimusError: The backend cannot train this model or layout; the fix names an alternative.
        """
