"""The environments of the backends: one virtual environment FOLDER/NAME-VERSION each, on storage that all nodes share.

`primus-cli backend install` creates it in a temporary folder and renames it when it is complete, so an environment is whole or absent.
primus-backend.json in it, which is written last, names the backend, its version and the digest of the list of packages.
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primus_bootstrap.launch.backends.contract import Backend

RECORD, SCHEMA = "primus-backend.json", "primus.backend/1"
_SHARED = Path("/jfs/primus/backends")
MISSING, OTHER_PACKAGES, OK = "missing", "other packages", "ok"


@dataclass(frozen=True)
class Found:
    """The environment of a backend. `state` is ok, missing, or other packages: it was built from another list than this release has."""

    backend: str
    version: str
    path: Path
    state: str

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.path / "bin" / "python"


def folder(setting: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of the environments: the setting, /jfs/primus/backends if it exists, or one in the user's home."""
    if setting:
        return Path(setting).absolute()
    if _SHARED.is_dir():
        return _SHARED
    data = environment.get("XDG_DATA_HOME") or str(Path(environment.get("HOME") or "/root") / ".local" / "share")
    return Path(data) / "primus" / "backends"


def packages(backend: Backend) -> str:
    """Return the list of packages, in the format of pip's requirements files, with hashes."""
    return (pkgutil.get_data("primus_bootstrap.launch", f"data/backends/{backend.name}.txt") or b"").decode("utf-8")


def digest(backend: Backend) -> str:
    """Return the digest of the list of packages."""
    return hashlib.sha256(packages(backend).encode()).hexdigest()


def find(backend: Backend, where: Path) -> Found:
    """Return the environment of a backend in a folder."""
    path = where / f"{backend.name}-{backend.version}"
    try:
        record = json.loads((path / RECORD).read_text("utf-8"))
        complete = record["schema"] == SCHEMA and record["version"] == backend.version and (path / "bin" / "python").exists()
        state = MISSING if not complete else OK if record["packages"] == digest(backend) else OTHER_PACKAGES
    except (OSError, ValueError, KeyError, TypeError):
        state = MISSING
    return Found(backend.name, backend.version, path, state)


def interpreter(backend: Backend, where: Path) -> str:
    """Return the interpreter of a backend's environment.

    Raises:
        PlanError: It is not installed.
    """
    found = find(backend, where)
    if found.state == MISSING:
        other = f"--python with an interpreter that has {backend.package} {backend.version}"
        fix = f"primus-cli backend install {backend.name} --folder {where}; or pass {other}"
        raise PlanError(f"{backend.name} {backend.version} is not installed in {where}", fix=fix)
    return str(found.python)
