"""Load programs, plugins and Ansible modules of roles by path, and fake programs."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import ansible.module_utils

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType


def load_file(path: Path, name: str = "") -> ModuleType:
    """Return a file as a module, by default with the name of the file. Its dataclasses find it by this name."""
    name = name or path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_role_module(role: str, name: str) -> Any:
    """Return the module `roles/<role>/library/<name>.py`, or the shared `plugins/modules/<name>.py`."""
    folder, shared = content.roles_dir() / role, content.plugins_dir()
    for utilities in (shared / "module_utils", folder / "module_utils"):
        ansible.module_utils.__path__.append(str(utilities))  # For modules that import each other.
        for utility in sorted(utilities.glob("*.py")):
            load_file(utility, f"ansible.module_utils.{utility.stem}")
    own = folder / "library" / f"{name}.py"
    return load_file(own if own.is_file() else shared / "modules" / f"{name}.py", f"{role}_{name}")


class Programs:
    """Fake programs: the calls, and the answer of each (by default no output and status 0)."""

    def __init__(self, answers: dict[str, tuple[int, str]] | None = None) -> None:
        """Store the answers by program and first argument."""
        self.answers = answers or {}
        self.calls: list[str] = []

    def __call__(self, argv: Sequence[str]) -> tuple[int, str]:
        """Answer one call."""
        self.calls.append(" ".join(argv))
        return self.answers.get(" ".join(argv[:2]), (0, ""))
