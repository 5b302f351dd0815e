"""Filters of the role `training_backend`: names, paths and wheels of the environments."""  # noqa: INP001 - Ansible loads plugins by path

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ansible.errors import AnsibleFilterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def training_backend_problem(stated: Sequence[Mapping[str, Any]]) -> str:
    """Return what is wrong with the names of environments, with the fix; empty if nothing is."""
    package = _package()
    names = [str(item["name"]) for item in stated]
    try:
        for name in names:
            package.backend(name)
    except package.error as error:
        return f"{error.what}. Fix: {error.fix}"
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"{', '.join(twice)} is there twice. Fix: remove one entry" if twice else ""


def training_backend_paths(stated: Sequence[Mapping[str, Any]], folder: str) -> list[str]:
    """Return the path of each environment."""
    package = _package()
    return [f"{folder}/{item['name']}-{package.backend(str(item['name'])).version}" for item in stated]


def training_backend_wheels(stated: Sequence[Mapping[str, Any]], folder: str, gpus: str) -> dict[str, list[str]]:
    """Return the files in a folder of wheels that the environments need, all wheels of torch and CUDA among them, and what is missing."""
    package = _package()
    needed = [package.python_options(name) for item in stated for name in package.backend_wheels(str(item["name"]), gpus)]
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


def _package() -> SimpleNamespace:
    """Return the functions of primus_bootstrap that the filters use.

    Raises:
        AnsibleFilterError: It is not installed where ansible-playbook runs.
    """
    try:
        from primus_bootstrap.bundle.backend_wheels import backend_wheels, python_options  # noqa: PLC0415 - else a fix
        from primus_bootstrap.core.errors import UsageError  # noqa: PLC0415 - the same
        from primus_bootstrap.launch.backends.registry import backend  # noqa: PLC0415 - the same
    except ImportError as error:
        fix = "install primus-bootstrap into the Python that runs ansible-playbook"
        raise AnsibleFilterError(f"primus_bootstrap cannot be imported: {error}. Fix: {fix}") from error
    return SimpleNamespace(backend=backend, error=UsageError, backend_wheels=backend_wheels, python_options=python_options)


class FilterModule:
    """The filters of this file, as Ansible expects them."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "training_backend_paths": training_backend_paths,
            "training_backend_problem": training_backend_problem,
            "training_backend_wheels": training_backend_wheels,
        }
