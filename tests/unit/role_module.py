"""Load programs, plugins and Ansible modules of roles by path, and fake programs."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import ansible.module_utils
import pytest

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


def load_utilities(folder: Path) -> None:
    """Load shared code of modules, as `ansible.module_utils.<name>`."""
    ansible.module_utils.__path__.append(str(folder))  # For modules that import each other.
    for utility in sorted(folder.glob("*.py")):
        load_file(utility, f"ansible.module_utils.{utility.stem}")


def load_shared(name: str) -> Any:
    """Return `plugins/module_utils/<name>.py`."""
    load_utilities(content.plugins_dir() / "module_utils")
    return sys.modules[f"ansible.module_utils.{name}"]


def load_role_module(role: str, name: str) -> Any:
    """Return the module `roles/<role>/library/<name>.py`, or the shared `plugins/modules/<name>.py`."""
    folder, shared = content.roles_dir() / role, content.plugins_dir()
    for utilities in (shared / "module_utils", folder / "module_utils"):
        load_utilities(utilities)
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


class EndedError(Exception):
    """A module ended; `args` are "ok" or "failed", and its result."""


class FakeModule:
    """An AnsibleModule that raises EndedError instead of exiting. `run_command` answers with status, output and errors."""

    def __init__(self, params: dict[str, Any] | None = None, *, check_mode: bool = False, run: Any = None, programs: Any = ()) -> None:
        """Store the parameters, how to answer commands, and the programs that exist."""
        self.params, self.check_mode, self.programs = params or {}, check_mode, programs
        self.run_command = run or (lambda _: (0, "", ""))

    def get_bin_path(self, name: str) -> str | None:
        """Return the path of a program that exists."""
        return f"/usr/bin/{name}" if name in self.programs else None

    def exit_json(self, **result: Any) -> None:
        """End with success."""
        raise EndedError("ok", result)

    def fail_json(self, **result: Any) -> None:
        """End with a failure."""
        raise EndedError("failed", result)


def run_module(monkeypatch: pytest.MonkeyPatch, plugin: Any, fake: FakeModule) -> tuple[str, dict[str, Any]]:
    """Run the main function of a module; return "ok" or "failed", and its result."""
    monkeypatch.setattr(plugin, "AnsibleModule", lambda *_, **__: fake)
    with pytest.raises(EndedError) as ended:
        plugin.main()
    return ended.value.args[0], ended.value.args[1]
