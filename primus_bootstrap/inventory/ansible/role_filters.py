"""Load the filter plug-in of a role, so that `validate` applies the same checks as the role's preflight."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import TYPE_CHECKING

from primus_bootstrap import content

if TYPE_CHECKING:
    from types import ModuleType


@cache
def load_filters(role: str) -> ModuleType:
    """Return `roles/<role>/filter_plugins/<role>.py` as a module, or `plugins/filter/<role>.py` if other roles use it too.

    Raises:
        ImportError: The role has no such file.
    """
    shared = content.plugins_dir() / "filter" / f"{role}.py"
    path = shared if shared.is_file() else content.roles_dir() / role / "filter_plugins" / f"{role}.py"
    spec = importlib.util.spec_from_file_location(f"primus_role_{role}", path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
