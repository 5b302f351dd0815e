"""Load a role's own Ansible module the way Ansible does: its module_utils answer to `ansible.module_utils.<name>`."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from primus_bootstrap import content

if TYPE_CHECKING:
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
    for utility in sorted((folder / "module_utils").glob("*.py")):
        _load(f"ansible.module_utils.{utility.stem}", utility)
    return _load(f"{role}_{name}", folder / "library" / f"{name}.py")
