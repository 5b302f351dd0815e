"""Find this program and the training programs in a checkout, an installed package or a zipapp, and unpack them from the zipapp.

torchrun starts scripts by path, and hooks are programs, so both need files outside the zipapp.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_if_changed
from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

_HERE = Path(__file__)
_PACKAGE_DEPTH = 2  # from this file up to the folder on sys.path
_IN_ARCHIVE = "workloads/"


def archive() -> Path | None:
    """Return the zipapp from which this program runs, None if it runs from files."""
    root = _HERE.parents[_PACKAGE_DEPTH]
    return root if root.is_file() else None


def own_command(python: str) -> tuple[str, ...]:
    """Return the command that starts this program with a given Python: `python3 launch.pyz`, or the same for files."""
    found = archive()
    if found:
        return (python, str(found))
    root = str(_HERE.parents[_PACKAGE_DEPTH])
    code = f"import sys; sys.path.insert(0, {root!r}); from primus_bootstrap.launch.__main__ import main; sys.exit(main())"
    return (python, "-c", code)


def workloads_folder(setting: str, environment: Mapping[str, str]) -> Path:
    """Return the folder of the training programs. From a zipapp, `unpack_workloads` creates it.

    Raises:
        PlanError: The programs are not installed.
    """
    if setting:
        return Path(setting).absolute()
    found = archive()
    if found:
        return _unpacked_folder(found, environment)
    package = _HERE.parents[1]
    for folder in (package.parent / "workloads", package / "content" / "workloads"):
        if folder.is_dir():
            return folder
    raise PlanError(f"there are no training programs beside {package}", fix="pass --workloads with the folder that contains train/")


def programs_in(workloads: Path, folder: str) -> tuple[str, ...]:
    """Return the names of the programs in a folder below `workloads`, without `.py`."""
    return _names_in(workloads, folder, ".py")


def presets_in(workloads: Path) -> tuple[str, ...]:
    """Return the names of the training presets below `workloads`, without `.yaml`; none if the folder cannot be read."""
    return _names_in(workloads, "presets", ".yaml")


def read_program(workloads: Path, name: str) -> str | None:
    """Return the text of a file below `workloads`, for example train/settings.py; None if it cannot be read."""
    found = archive()
    try:
        if (workloads / name).is_file() or found is None:
            return (workloads / name).read_text("utf-8")
        with zipfile.ZipFile(found) as packed:
            return packed.read(f"{_IN_ARCHIVE}{name}").decode("utf-8")
    except (OSError, KeyError, UnicodeDecodeError):
        return None


def _names_in(workloads: Path, folder: str, suffix: str) -> tuple[str, ...]:
    found = archive()
    if (workloads / folder).is_dir() or found is None:
        names = [path.name for path in (workloads / folder).glob(f"*{suffix}")]
    else:
        with zipfile.ZipFile(found) as packed:
            paths = [Path(name) for name in packed.namelist()]
        names = [path.name for path in paths if path.parent == Path(_IN_ARCHIVE, folder) and path.suffix == suffix]
    return tuple(sorted(name[: -len(suffix)] for name in names if not name.startswith("_")))


def _unpacked_folder(found: Path, environment: Mapping[str, str]) -> Path:
    """Return the folder in the user's cache whose name contains the zipapp's digest."""
    digest = hashlib.sha256(found.read_bytes()).hexdigest()[:16]
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or _home()) / ".cache")
    return cache / "primus" / f"workloads-{digest}" / "workloads"


def _home() -> Path:
    """Return the home folder if HOME is not set (a systemd unit), or a temporary folder if the account has none."""
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return Path(tempfile.gettempdir()) / f"primus-{os.geteuid()}"


def unpack_workloads(environment: Mapping[str, str]) -> None:
    """Unpack the zipapp's training programs into the user's cache, once.

    Raises:
        PlanError: The zipapp has none, the cache cannot be written, or the unpacked folder belongs to another account.
    """
    found = archive()
    if found is None:
        return
    target = _unpacked_folder(found, environment).parent
    if target.is_dir():
        if not (environment.get("XDG_CACHE_HOME") or environment.get("HOME")) and target.stat().st_uid != os.geteuid():
            fix = "set XDG_CACHE_HOME to a folder that you own"
            raise PlanError(f"{target} is owned by another account; its programs are not run", fix=fix)
        return
    with zipfile.ZipFile(found) as packed:
        names = [name for name in packed.namelist() if name.startswith(_IN_ARCHIVE)]
        if not names:
            raise PlanError(f"{found} contains no training programs", fix="pass --workloads with the folder that contains train/")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".unpacking-"))
        except OSError as error:
            raise PlanError(
                f"{target.parent} cannot be written: {error}", fix="set XDG_CACHE_HOME to a folder that you own, or pass --workloads"
            ) from error
        packed.extractall(temporary, names)
    try:
        temporary.rename(target)
    except OSError:  # another process has unpacked the same content
        shutil.rmtree(temporary)


def unpack_resource(data: bytes, name: str, folder: Path) -> Path:
    """Write a file of this package into a folder as an executable, unless its content is the same; return its path."""
    path = folder / name
    write_if_changed(path, data, mode=0o755)
    return path
