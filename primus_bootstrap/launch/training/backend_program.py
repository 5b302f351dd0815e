"""The interpreter and the program of a run on a backend, for `train pretrain` and `train posttrain`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from primus_bootstrap.launch.backends import environments
from primus_bootstrap.launch.backends.registry import backend
from primus_bootstrap.launch.backends.run_file import NAME, run_file
from primus_bootstrap.launch.tasks import Program

if TYPE_CHECKING:
    from primus_bootstrap.launch.backends.contract import Backend, Run
    from primus_bootstrap.launch.tasks import Request


def interpreter(request: Request, name: str) -> str:
    """Return the interpreter of the environment of a backend; empty for the native trainer, whose name is empty.

    Raises:
        PlanError: It is not installed, or has another version.
    """
    return environments.interpreter(backend(name), environments.folder(request.backend_folder, os.environ)) if name else ""


def program(request: Request, adapter: Backend, run: Run) -> Program:
    """Return the program of a run.

    Raises:
        PrimusError: The backend cannot train this.
    """
    rendered = adapter.render(run)
    path = request.run_dir / NAME
    return Program(
        (str(request.workloads() / adapter.script),),
        ("--run", str(path), "--", *rendered.argv),
        environment=rendered.environment,
        files=((str(path), run_file(adapter, run)), *((str(request.run_dir / name), text) for name, text in rendered.files)),
        last_rank_logs=adapter.last_rank_logs,
        per_node=adapter.per_node,
    )
