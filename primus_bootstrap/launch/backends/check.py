"""Check the settings of a training run on a backend, offline: common settings and the backend's own keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError, joined
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.launch.backends import common_settings, key_table
from primus_bootstrap.launch.backends.registry import backends
from primus_bootstrap.launch.programs import train_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.launch.backends.contract import Backend
    from primus_bootstrap.launch.programs.settings_file import Given

# Every backend has them: they choose the recipe, and what this package itself writes.
_ALWAYS = frozenset({"about", "backend", "recipe", "model", "gpu", "estimate"})


@dataclass(frozen=True)
class Checked:
    """The values of a run, in their types. `stated` are the common settings that the user or a preset gives."""

    stated: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)


def check(backend: Backend, workloads: Path, given: Sequence[Given], preset: Sequence[Given] = ()) -> Checked:
    """Check the user's settings and return their values; those of a preset that the backend does not use are left out.

    Raises:
        UsageError: With every problem: an unknown name with the nearest one, a value of the wrong type, a setting that the backend does
            not use.
    """
    known = common_settings.common_settings(workloads)
    stated: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    problems: list[UsageError] = []
    for item in (*(entry for entry in preset if _used(backend, entry.name)), *given):
        name = _common_name(backend, item.name)
        own = name.startswith(f"{backend.name}.")
        what, fix = _own_problem(backend, item) if own else _problem(backend, known, name, item.value)
        if what:
            problems.append(UsageError(f"{item.where}: {item.name}: {what}", fix=fix))
        elif own:
            key = backend.known_keys()[name[len(backend.name) + 1 :]]
            keys[key.name] = key_table.typed(key, item.value)
        else:
            stated[name] = common_settings.typed(known[name], item.value)
    if problems:
        raise joined(problems)
    return Checked(stated, keys)


def _used(backend: Backend, name: str) -> bool:
    return name in backend.supported or name in _ALWAYS or name.startswith(f"{backend.name}.")


def _common_name(backend: Backend, name: str) -> str:
    """Return the common setting for a key of the backend that has one, such as train.steps for megatron.train_iters."""
    prefix = f"{backend.name}."
    return backend.same.get(name[len(prefix) :], name) if name.startswith(prefix) else name


def _own_problem(backend: Backend, item: Given) -> tuple[str, str]:
    name = item.name[len(backend.name) + 1 :]
    known = backend.known_keys()
    if name not in known:
        prefix = f"{backend.name}."
        return f"no such setting of {backend.name} {backend.version}", key_table.unknown_key(name, known, prefix)
    return key_table.problem(known[name], item.value)


def _problem(backend: Backend, known: Mapping[str, train_settings.Known], name: str, value: Any) -> tuple[str, str]:
    if name not in known:
        section = name.partition(".")[0]
        if section in backends():
            return f"a setting of {section}, and backend is {backend.name}", f"remove it, or set backend={section}"
        own = nearest(name, backend.known_keys(), cutoff=0.9)
        if own and "." not in name:
            return "no such setting", f"did you mean {backend.name}.{own}?"
        return train_settings.problem(known, name, value)
    if not _used(backend, name):
        return f"{backend.name} has no such setting", f"remove it, or set one of {backend.name}'s own: {backend.name}.NAME"
    return train_settings.problem(known, name, value)
