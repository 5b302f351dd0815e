"""The file that the launcher writes for the program of a backend: backend.json in the run folder.

workloads/backends/common/run_facts.py reads it. It also records what was trained, and how.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from primus_bootstrap.launch.backends.contract import Backend, Run

NAME = "backend.json"


def run_file(backend: Backend, run: Run) -> str:
    """Return the content of the file."""
    return json.dumps(_facts(backend, run), indent=1, default=list) + "\n"


def _facts(backend: Backend, run: Run) -> dict[str, Any]:
    settings, length = run.settings, run.recipe.batch.length
    return {
        "backend": backend.name,
        "version": backend.version,
        "package": backend.package,
        "recipe": run.recipe.name,
        "model": run.shape.name,
        "devices": run.recipe.layout.gpus,
        "steps": settings["train.steps"],
        "sequence_length": length,
        "global_batch": run.recipe.batch.all,
        "flops_per_token": run.shape.flops_per_token(length),
        "parameters": run.shape.parameters(),
        "active_parameters": run.shape.active_parameters(),
        "precision": run.recipe.precision,
        "checkpoint_folder": settings["checkpoint.folder"],
        "keep": settings["checkpoint.keep"],
        "resume": settings["checkpoint.resume"],
        "start_from": settings["checkpoint.start_from"],
        "print_every_steps": settings["telemetry.print_every_steps"],
        "prometheus_file": settings["telemetry.prometheus_file"],
        "settings": {name: value for name, value in settings.items() if name in backend.supported},
        "keys": {**run.recipe.keys, **run.keys},
    }
