"""Load an Ansible module of a role with its module_utils, and fake programs."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import ansible.module_utils

from primus_bootstrap import content

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_role_module(role: str, name: str) -> Any:
    """Return the module `roles/<role>/library/<name>.py`."""
    folder = content.roles_dir() / role
    ansible.module_utils.__path__.append(str(folder / "module_utils"))  # For modules that import each other.
    for utility in sorted((folder / "module_utils").glob("*.py")):
        _load(f"ansible.module_utils.{utility.stem}", utility)
    return _load(f"{role}_{name}", folder / "library" / f"{name}.py")


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
