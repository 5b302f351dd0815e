"""Filters of the role `training_backend`: names, paths and wheels of the environments."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def training_backend_problem(stated: Sequence[Mapping[str, Any]]) -> str:
    """Return what is wrong with the names of environments, with the fix; empty if nothing is."""
    registry, errors = _package("launch.backends.registry"), _package("core.errors")
    names = [str(item["name"]) for item in stated]
    try:
        for name in names:
            registry.backend(name)
    except errors.UsageError as error:
        return f"{error.what}. Fix: {error.fix}"
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"{', '.join(twice)} is there twice. Fix: remove one entry" if twice else ""


def training_backend_paths(stated: Sequence[Mapping[str, Any]], folder: str) -> list[str]:
    """Return the path of each environment."""
    registry = _package("launch.backends.registry")
    return [f"{folder}/{item['name']}-{registry.backend(str(item['name'])).version}" for item in stated]


def training_backend_wheels(stated: Sequence[Mapping[str, Any]], folder: str, gpus: str) -> dict[str, list[str]]:
    """Return the files in a folder of wheels that the environments need, all wheels of torch and CUDA among them, and what is missing."""
    wheels = _package("bundle.backend_wheels")
    needed = [wheels.python_options(name) for item in stated for name in wheels.backend_wheels(str(item["name"]), gpus)]
    present = {path: _pin(path.name) for path in Path(folder).glob("*.whl")}
    pins = dict.fromkeys(_same(requirement) for requirement, _ in needed)
    extra = [path for path, pin in present.items() if re.match(r"(torch|triton|nvidia|jax)", pin)]
    files = {str(path) for path, pin in present.items() if pin in pins} | {str(path) for path in extra}
    return {"files": sorted(files), "missing": [pin for pin in pins if pin not in present.values()]}


def _pin(file: str) -> str:
    """Return NAME==VERSION of a wheel's file: https://packaging.python.org/en/latest/specifications/binary-distribution-format/."""
    name, version, *_ = file.split("-")
    return _same(f"{name}=={version}")


def _same(requirement: str) -> str:
    """Return a requirement whose name is normalized: https://packaging.python.org/en/latest/specifications/name-normalization/."""
    name, _, version = requirement.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def _package(name: str) -> Any:
    """Import a module of primus_bootstrap.

    Raises:
        AnsibleFilterError: It is not installed where ansible-playbook runs.
    """
    try:
        return import_module(f"primus_bootstrap.{name}")
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleFilterError(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error


class FilterModule:
    """The filters of this file, as Ansible expects them."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "training_backend_paths": training_backend_paths,
            "training_backend_problem": training_backend_problem,
            "training_backend_wheels": training_backend_wheels,
        }
