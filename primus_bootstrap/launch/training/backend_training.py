"""`train pretrain` on a backend: which one the settings choose, its check, its interpreter and its program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.backends.check import check as check_settings
from primus_bootstrap.launch.backends.described_run import Machine, describe
from primus_bootstrap.launch.backends.registry import NATIVE, POSTTRAINING, backend, backends
from primus_bootstrap.launch.estimate.run_check import REFUSE, WARN, estimate_run
from primus_bootstrap.launch.programs import settings_file
from primus_bootstrap.launch.recipes import catalogue
from primus_bootstrap.launch.self_exec import presets_in, read_program
from primus_bootstrap.launch.training import backend_program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from primus_bootstrap.launch.backends.contract import Backend, Run
    from primus_bootstrap.launch.programs.settings_file import Given
    from primus_bootstrap.launch.tasks import Program, Request
    from primus_bootstrap.launch.training.training_files import Files


def chosen(files: Files) -> str:
    """Return the name of the backend; empty for the native trainer. A recipe that is named without a backend chooses its own.

    Raises:
        UsageError: There is no such backend, or it does not pre-train.
    """
    stated = [str(item.value) for item in files.given if item.name == "backend"]
    if not stated:
        recipes = {item.name: item.backend for item in catalogue.recipes()} if _may_be_recipe(_names(files)) else {}
        stated = [recipes[name] for name in _names(files) if name in recipes]
    if not stated or stated[-1] == NATIVE:
        return ""
    if backend(stated[-1]).name in POSTTRAINING:
        fix = f"use train posttrain, or set backend to one of: {_names_of_backends()}"
        raise UsageError(f"{stated[-1]} is no backend of train pretrain", fix=fix)
    return stated[-1]


def _names_of_backends() -> str:
    return ", ".join(name for name in backends() if name not in POSTTRAINING)


def is_recipe(names: Iterable[str]) -> bool:
    """Return whether one of the names is a recipe of a backend."""
    return any(item.name in names and item.backend != NATIVE for item in catalogue.recipes()) if _may_be_recipe(names) else False


def _may_be_recipe(names: Iterable[str]) -> bool:
    """Reading the recipes takes a moment; a run without names that look like recipes does not need it."""
    return any(name.count("-") > 2 for name in names)


def _names(files: Files) -> list[str]:
    return [*files.names, *(str(item.value) for item in files.given if item.name == "recipe")]


def model_hint(name: str) -> str:
    """Return the fix for a name that is a model or a recipe, and not a preset of the native trainer; empty for another name."""
    known = name in catalogue.models() or any(item.name == name for item in catalogue.recipes())
    return f"add backend=NAME to train this model on a backend: {_names_of_backends()}" if known else ""


def check(request: Request, files: Files) -> tuple[str, ...]:
    """Check the settings of a run on a backend, and render it; return remarks for the plan.

    Raises:
        PrimusError: A name or a value is wrong, or the backend cannot train this.
    """
    adapter = backend(chosen(files))
    if "--print-settings" in request.arguments:
        fix = "primus-cli --dry-run direct -- train pretrain ... prints them, with the command of the backend"
        raise UsageError(f"--print-settings is of the native trainer, and backend is {adapter.name}", fix=fix)
    run = _run(request, adapter, files)
    notes = adapter.render(run).notes
    recipe = f"backend: {adapter.name} {adapter.version}, recipe: {run.recipe.name or 'none, the settings describe the model'}"
    return (recipe, estimate_run(run.shape, run.recipe, _estimate_mode(request, run)), *notes)


def _estimate_mode(request: Request, run: Run) -> str:
    """Return what happens to a run that does not fit: without a known GPU, the recipe's GPU is an assumption, and no reason to refuse."""
    mode, known = str(run.settings["estimate"]), request.gpu or run.settings["gpu"]
    return WARN if mode == REFUSE and not known else mode


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
    preset, named = _resolve_names(request, files)
    checked = check_settings(adapter, workloads, (*named, *files.given), preset)
    return describe(adapter, checked, workloads, Machine(request.ranks, request.gpu), request.run_dir)


def _resolve_names(request: Request, files: Files) -> tuple[list[Given], list[Given]]:
    """Return the settings of the presets that --config names, and the recipe or model that it names.

    Raises:
        UsageError: A name is neither.
    """
    workloads = request.workloads()
    preset: list[Given] = []
    named: list[Given] = []
    recipes, presets = [item.name for item in catalogue.recipes()], presets_in(workloads)
    for name in files.names:
        if name in recipes or name in catalogue.models():
            named.append(settings_file.Given("recipe" if name in recipes else "model", name, f"--config {name}"))
        elif name in presets:
            preset += settings_file.from_yaml(read_program(workloads, f"presets/{name}.yaml") or "", f"preset {name}")
        elif not (request.prepared and files.is_path(name)):
            known = [*recipes, *catalogue.models(), *presets]
            raise UsageError(f"--config {name}: no such file, recipe, model or preset", fix=did_you_mean(name, known))
    return preset, named


def help_text() -> str:
    """Return what the help of the task says about backends."""
    names = ", ".join(f"{item.name} {item.version}" for item in backends().values() if item.name not in POSTTRAINING)
    return (
        f"\nbackends: backend=NAME trains with {names} instead of the native trainer. Settings of the backend: NAME.SETTING=value.\n"
        "Common settings that only backends have: parallel.sequence, parallel.shards, compute.recompute_layers. docs/backends.md\n"
        "describes them.\n"
    )
