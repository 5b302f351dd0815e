"""What an adapter of a training backend offers to the launcher.

`render` turns a run into a command; `known_keys` are the settings that the pinned version of the backend accepts. The other two parts of an
adapter need the backend's own interpreter, so they are programs in workloads/backends/<name>: `pretrain.py` starts the backend and writes
steps.jsonl from its log, and `parse.py` passes rendered settings through the backend's real parser without training.
docs/backends.md, "To add a backend", has the steps.
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
    """One training run. `settings` are the user's, by their common names such as train.steps; `keys` are those of the backend.

    The recipe already contains what the user set: layout, batch, precision and recompute. Its own keys are weaker than `keys`.
    """

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
    """A setting of the backend. `kind` is bool, flag, int, float, str, list or any; `choices` are the only values, if there are any.

    `option` sets it on the backend's command line and `off` switches it off; both are empty if the backend reads a file.
    """

    name: str
    kind: str
    default: Any = None
    choices: tuple[Any, ...] = ()
    option: str = ""
    off: str = ""


class Backend(Protocol):
    """An adapter."""

    name: str
    version: str  # the pinned version
    package: str  # the Python package that has this version
    script: str  # its program, below the folder of the workloads
    supported: frozenset[str]  # the common settings that it uses; the user's other ones are errors
    default_strategy: str  # parallel.strategy of a run without a recipe that does not state it
    last_rank_logs: bool  # the last rank prints the steps, and not the first one
    per_node: bool  # one process per node uses all its GPUs, and torch is not needed
    same: Mapping[str, str]  # keys of the backend that have a common setting, which the launcher must know: train_iters -> train.steps

    def known_keys(self) -> Mapping[str, Key]:
        """Return the accepted settings by name, from the data file of the pinned version."""

    def render(self, run: Run) -> Rendered:
        """Return the command of a run.

        Raises:
            PrimusError: The backend cannot train this model or layout; the fix names an alternative.
        """
