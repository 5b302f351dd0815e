"""What the launcher writes for the program of a backend: backend.json in the run folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from workloads.common.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run of a backend. The launcher computes it from the settings, primus_bootstrap/launch/backends/run_file.py."""

    backend: str
    version: str  # the pinned version of the backend
    package: str  # the Python package that has this version
    devices: int  # of the whole run
    steps: int
    sequence_length: int
    global_batch: int
    flops_per_token: float
    parameters: int
    active_parameters: int
    precision: str
    checkpoint_folder: str
    keep: int  # complete checkpoints to keep
    resume: str  # auto, never, or the path of a checkpoint
    start_from: str  # path of a checkpoint whose weights initialize a run without a checkpoint
    print_every_steps: int
    prometheus_file: str
    settings: dict[str, Any]


def read_run_facts(path: Path) -> RunFacts:
    """Return the facts of a run.

    Raises:
        SettingsError: The file is missing, or another version of primus-cli wrote it.
    """
    fix = "start the run with primus-cli direct -- train pretrain, which writes this file"
    try:
        content = json.loads(path.read_text("utf-8"))
        return RunFacts(**{entry.name: content[entry.name] for entry in fields(RunFacts)})
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", fix=fix) from error
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{path}: not the file of a run: {error}", fix=fix) from error
