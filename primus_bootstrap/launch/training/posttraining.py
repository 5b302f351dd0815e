"""`train posttrain` on a backend: which one the settings choose, its check, its interpreter and its program."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.backends import common_settings
from primus_bootstrap.launch.backends.check import check as check_settings
from primus_bootstrap.launch.backends.contract import Run
from primus_bootstrap.launch.backends.registry import NATIVE, POSTTRAINING, backend
from primus_bootstrap.launch.backends.trl import configuration, recipes, rewards
from primus_bootstrap.launch.recipes.model_shape import ModelShape
from primus_bootstrap.launch.recipes.recipe import Batch, Layout, Recipe, Recompute
from primus_bootstrap.launch.training import backend_program, training_task

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from primus_bootstrap.launch.backends.contract import Backend
    from primus_bootstrap.launch.programs.settings_file import Given
    from primus_bootstrap.launch.tasks import Program, Request, Task
    from primus_bootstrap.launch.training.training_files import Files


def chosen(files: Files) -> str:
    """Return the name of the backend; empty for the native trainer. A recipe of post-training chooses its own.

    Raises:
        UsageError: There is no such backend, or it does not post-train.
    """
    stated = [str(item.value) for item in files.given if item.name == "backend"]
    if not stated:
        return POSTTRAINING[0] if any(name in recipes.NAMES for name in files.names) else ""
    if stated[-1] == NATIVE:
        return ""
    if backend(stated[-1]).name not in POSTTRAINING:
        fix = f"set backend to one of: {NATIVE}, {', '.join(POSTTRAINING)}; or use train pretrain"
        raise UsageError(f"{stated[-1]} is no backend of train posttrain", fix=fix)
    return stated[-1]


def check(request: Request, files: Files) -> tuple[str, ...]:
    """Check the settings of a run on a backend, and render it; return remarks for the plan.

    Raises:
        PrimusError: A name or a value is wrong, or the backend cannot train this.
    """
    adapter = backend(chosen(files))
    if "--print-settings" in request.arguments:
        fix = "primus-cli --dry-run direct -- train posttrain ... prints the command of the backend"
        raise UsageError(f"--print-settings is of the native trainer, and backend is {adapter.name}", fix=fix)
    run = _run(request, adapter, files)
    notes = adapter.render(run).notes
    rewards.check(run.settings["rewards"], lambda path: request.find(request.cwd / path))
    _check_files(request, run)
    named = f"recipe {run.recipe.name}" if run.recipe.name else "no recipe"
    return (f"backend: {adapter.name} {adapter.version}, method: {run.settings['method']}, {named}", *notes)


def interpreter(request: Request, files: Files) -> str:
    """Return the interpreter of the backend's environment; empty for the native trainer.

    Raises:
        PlanError: It is not installed, or has another version.
    """
    return backend_program.interpreter(request, chosen(files))


def program(request: Request, files: Files) -> Program:
    """Return the program of a run on a backend.

    Raises:
        PrimusError: As `check`.
    """
    adapter = backend(chosen(files))
    return backend_program.program(request, adapter, _run(request, adapter, files))


def _run(request: Request, adapter: Backend, files: Files) -> Run:
    workloads = request.workloads()
    known = common_settings.common_settings(workloads)
    checked = check_settings(adapter, workloads, (*_recipe(request, files.names, files), *files.given))
    defaults = {name: item.default for name, item in known.items()}
    settings = configuration.values(checked.stated, {**defaults, "parallel.strategy": adapter.default_strategy})
    name = next((name for name in files.names if name in recipes.NAMES), "")
    return Run(_recipe_of(name, adapter, settings, request), _shape(settings), settings, checked.keys, request.run_dir)


def _recipe(request: Request, names: Iterable[str], files: Files) -> list[Given]:
    found: list[Given] = []
    for name in names:
        if name in recipes.NAMES:
            found += recipes.recipe(name).given()
        elif not (request.prepared and files.is_path(name)):
            raise UsageError(f"--config {name}: no such file or recipe of post-training", fix=did_you_mean(name, recipes.NAMES))
    return found


def _recipe_of(name: str, adapter: Backend, settings: dict[str, Any], request: Request) -> Recipe:
    return Recipe(
        name,
        _shape(settings).name,
        adapter.name,
        request.gpu,
        settings["compute.precision"],
        Layout(gpus=request.ranks or 1, data=settings["parallel.strategy"]),
        Batch(settings["train.sequence_length"], settings["train.micro_batch"], settings["train.global_batch"]),
        Recompute(settings["compute.recompute"]),
    )


def _shape(settings: dict[str, Any]) -> ModelShape:
    """Return the name of the model. Its sizes are in the folder of the weights, and the program reads them there."""
    name = settings["checkpoint.start_from"].rstrip("/").rpartition("/")[2]
    return ModelShape(name, layers=0, width=0, heads=1, kv_heads=1, head_size=0, ffn_width=0, vocabulary=0)


def _check_files(request: Request, run: Run) -> None:
    """Check that the model and the data exist, if this machine can see them.

    Raises:
        UsageError: One is missing.
    """
    if request.prepared:  # hooks may create them
        return
    model = _missing(request, run.settings["checkpoint.start_from"], "config.json")
    if model:
        fix = "set checkpoint.start_from to a folder with config.json, safetensors files and a tokenizer"
        raise UsageError(f"checkpoint.start_from: {model} does not exist", fix=fix)
    for setting in ("data.files", "data.validation_files"):
        for name in run.settings[setting]:
            if _missing(request, name):
                raise UsageError(f"{setting}: {name} does not exist", fix="correct the path; relative paths are below the working folder")


def _missing(request: Request, name: str, inside: str = "") -> Path | None:
    path = request.cwd / name / inside if inside else request.cwd / name
    found = request.find(path)
    return path if found is not None and not found.is_file() else None


def with_backends(native: Task) -> Task:
    """Return the task of the native trainer, extended by the backends."""

    def files(request: Request) -> Files:
        return training_task.read(request)

    def run_check(request: Request) -> tuple[str, ...]:
        found = files(request)
        if chosen(found):
            return (*found.remarks, *check(request, found))
        return native.check(request) if native.check else ()

    def run_program(request: Request) -> Program:
        found = files(request)
        return program(request, found) if chosen(found) else training_task.program(request, "posttrain.py", backends=False)

    return replace(
        native,
        usage="--config FILE|PRESET|RECIPE [backend=trl method=sft|lora|grpo] [key=value]...",
        check=run_check,
        program=run_program,
        python=lambda request: interpreter(request, files(request)),
        help=lambda request: training_task.help_text(native.name, request, backends=False) + help_text(),
    )


def help_text() -> str:
    """Return what the help of the task says about backends."""
    names = ", ".join(f"{name} {backend(name).version}" for name in POSTTRAINING)
    return (
        f"\nbackends: backend={names} trains models in the format of Hugging Face: method=sft, method=lora or method=grpo.\n"
        "Its own settings: trl.sft.NAME=value, trl.grpo.NAME=value, trl.lora.NAME=value. docs/posttraining.md describes them.\n"
        f"recipes for --config: {', '.join(recipes.NAMES)}\n"
    )
