"""Where this program and the training programs are: in a checkout, in an installed package, or inside a zipapp.

The only module that unpacks the zipapp: torchrun starts scripts by path, and hooks are programs.
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
_PACKAGE_DEPTH = 3  # primus_bootstrap/launch/runtimes below the folder that is on sys.path
_IN_ARCHIVE = "workloads/"


def archive() -> Path | None:
    """Return the zipapp that this program runs from, None where it runs from files."""
    root = _HERE.parents[_PACKAGE_DEPTH]
    return root if root.is_file() else None


def own_command(python: str) -> tuple[str, ...]:
    """Return the words that start this program (`python3 launch.pyz`, or its equal for files) with a given Python."""
    found = archive()
    if found:
        return (python, str(found))
    root = str(_HERE.parents[_PACKAGE_DEPTH])
    code = f"import sys; sys.path.insert(0, {root!r}); from primus_bootstrap.launch.__main__ import main; sys.exit(main())"
    return (python, "-c", code)


def workloads_folder(wanted: str, environment: Mapping[str, str]) -> Path:
    """Return the folder with the training programs; from a zipapp it is there once `unpack_workloads` has run.

    Raises:
        PlanError: There is none.
    """
    if wanted:
        return Path(wanted).absolute()
    found = archive()
    if found:
        return _unpacked_folder(found, environment)
    package = _HERE.parents[2]
    for folder in (package.parent / "workloads", package / "content" / "workloads"):
        if folder.is_dir():
            return folder
    raise PlanError(f"no training programs beside {package}", fix="set --workloads to the folder that holds train/")


def programs_in(workloads: Path, folder: str) -> tuple[str, ...]:
    """Return the names of the programs in one folder of the training programs."""
    found = archive()
    if (workloads / folder).is_dir() or found is None:
        names = [path.name for path in (workloads / folder).glob("*.py")]
    else:
        with zipfile.ZipFile(found) as packed:
            paths = [Path(name) for name in packed.namelist()]
        names = [path.name for path in paths if path.parent == Path(_IN_ARCHIVE, folder) and path.suffix == ".py"]
    return tuple(sorted(name[: -len(".py")] for name in names if not name.startswith("_")))


def _unpacked_folder(found: Path, environment: Mapping[str, str]) -> Path:
    """Return a folder in the user's cache with a name made from the archive's content."""
    digest = hashlib.sha256(found.read_bytes()).hexdigest()[:16]
    cache = Path(environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or _home()) / ".cache")
    return cache / "primus" / f"workloads-{digest}" / "workloads"


def _home() -> Path:
    """Return the home folder where no variable says it (a systemd unit), else a temporary one; what others have put there is refused."""
    try:
        return Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:
        return Path(tempfile.gettempdir()) / f"primus-{os.geteuid()}"


def unpack_workloads(environment: Mapping[str, str]) -> None:
    """Unpack the zipapp's training programs, where they are in one and not unpacked yet.

    Raises:
        PlanError: There are none in it, or the cache cannot be written.
    """
    found = archive()
    if found is None:
        return
    target = _unpacked_folder(found, environment).parent
    if target.is_dir():
        if not (environment.get("XDG_CACHE_HOME") or environment.get("HOME")) and target.stat().st_uid != os.geteuid():
            raise PlanError(f"{target} belongs to another user, whose programs are not run", fix="set XDG_CACHE_HOME to a folder of yours")
        return
    with zipfile.ZipFile(found) as packed:
        names = [name for name in packed.namelist() if name.startswith(_IN_ARCHIVE)]
        if not names:
            raise PlanError(f"{found} has no training programs in it", fix="set --workloads to the folder that holds train/")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".unpacking-"))
        except OSError as error:
            raise PlanError(
                f"{target.parent} cannot be written: {error}", fix="set XDG_CACHE_HOME or --workloads to a folder of yours"
            ) from error
        packed.extractall(temporary, names)
    try:
        temporary.rename(target)
    except OSError:  # another process was quicker: both have the same content
        shutil.rmtree(temporary)


def unpack_resource(data: bytes, name: str, folder: Path) -> Path:
    """Write a file of this package into a folder, executable, and return its path; the same content is left alone."""
    path = folder / name
    write_if_changed(path, data, mode=0o755)
    return path
