"""Install the environment of a backend with pip, from a list of pinned packages with hashes.

What depends on the GPUs is not in the list, such as torch, triton and the plug-ins of JAX. torch is the one of the Python that creates the
environment, if it has one (as in the images of the vendors). Otherwise pip installs the releases that the list names in its comments, from
`torch_index` or pip's own index.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError, RunError, UsageError
from primus_bootstrap.launch.backends import environments, package_list, unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from primus_bootstrap.launch.backends.contract import Backend
    from primus_bootstrap.launch.backends.environments import Found

_TORCH_FOLDER = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0].rpartition('/')[0])"
_LEAST_PYTHON = "3.11"
_VENV_S, _PIP_S = 300, 3600
_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


@dataclass(frozen=True)
class Choices:
    """How to install. `source` is a folder with all packages, for a machine without network. `gpu_vendor` is amd, nvidia or empty."""

    python: str = "python3"
    torch_index: str = ""
    source: str = ""
    gpu_vendor: str = ""


def install(backend: Backend, where: Path, choices: Choices, show: Callable[[str], None]) -> Found:
    """Create the environment of a backend; return it. An existing one of the same list is kept.

    Raises:
        PrimusError: The Python does not suit, or pip failed.
    """
    found = environments.find(backend, where)
    if found.state == environments.OK:
        show(f"{found.path} is installed")
        return found
    where.mkdir(parents=True, exist_ok=True)
    with unfinished.folder(found.path) as building:
        if environments.find(backend, where).state != environments.OK:  # another process may have installed it since
            _build(backend, building, found.path, choices, show)
            _put(building, found.path)
    return environments.find(backend, where)


def _build(backend: Backend, building: Path, final: Path, choices: Choices, show: Callable[[str], None]) -> None:
    lines = environments.packages(backend).splitlines()
    version = _python_version(choices.python, package_list.only_python(lines))
    show(f"create {final} with {choices.python} {version}")
    _run([choices.python, "-m", "venv", str(building)], _VENV_S, "python -m venv", "install the package python3-venv")
    python = str(building / "bin" / "python")
    needed = package_list.needed(lines, choices.gpu_vendor)
    own_torch = _output([choices.python, "-c", _TORCH_FOLDER]) if "torch" in needed else ""
    source = ["--no-index", "--find-links", choices.source] if choices.source else []
    if own_torch:  # also that of a virtual environment, as in AMD's images, which --system-site-packages does not add
        show(f"use torch in {own_torch}")
        (building / "lib" / f"python{version}" / "site-packages" / "torch-of-the-base.pth").write_text(f"{own_torch}\n", "utf-8")
    _install_needed(needed, python, source, choices, show)
    show(f"install the packages of {backend.name} {backend.version}")
    listed = building / "packages.txt"
    listed.write_text(environments.packages(backend), "utf-8")
    _pip(python, ["--no-deps", "--require-hashes", "--ignore-requires-python", *source, "-r", str(listed)])
    _check(backend, python)
    _correct_paths(building, final)
    _record(backend, building, choices.python, version)


def _install_needed(needed: Mapping[str, str], python: str, source: Sequence[str], choices: Choices, show: Callable[[str], None]) -> None:
    """Install what depends on the GPUs, unless the environment has it."""
    for name, release in needed.items():
        if _installed(python, name):
            continue
        if name in package_list.OF_TORCH and choices.gpu_vendor == "amd" and not choices.torch_index and not source:
            fix = "pass --python with the Python of AMD's image, or --torch-index with the index of torch for this ROCm release"
            raise PlanError(f"this host has AMD GPUs, and pip's {name} is for NVIDIA GPUs", fix=fix)
        show(f"install {release}")
        index = ["--index-url", choices.torch_index] if choices.torch_index and name in package_list.OF_TORCH else []
        _pip(python, [*index, *source, release])


def _installed(python: str, package: str) -> str:
    """Return the version of a package; empty if the Python does not have it."""
    return _output([python, "-c", f"from importlib.metadata import version; print(version({package!r}))"])


def _python_version(python: str, only: str) -> str:
    """Return the release of a Python, such as 3.12. `only` is the release that the backend needs, if there is just one."""
    found = _output([python, "-c", _VERSION])
    wanted = only or f"{_LEAST_PYTHON} or newer"
    if not found:
        raise UsageError(f"{python} cannot be run", fix=f"pass --python with a Python {wanted}")
    old = tuple(map(int, found.split("."))) < tuple(map(int, _LEAST_PYTHON.split(".")))
    if found != only if only else old:
        raise UsageError(f"{python} is Python {found}, and the backend needs {wanted}", fix=f"pass --python with a Python {wanted}")
    return found


def _output(argv: Sequence[str]) -> str:
    """Return the output of a short program; empty if it fails."""
    try:
        done = run_command(argv, timeout_s=_VENV_S)
    except OSError:
        return ""
    return done.stdout.strip() if done.code == 0 else ""


def _pip(python: str, words: Sequence[str]) -> None:
    fix = "check the network and the index of pip (pip config list), or pass --from with a folder that has the packages"
    _run([python, "-m", "pip", "--disable-pip-version-check", "install", *words], _PIP_S, "pip", fix)


def _run(argv: Sequence[str], timeout_s: int, what: str, fix: str) -> None:
    try:
        done = run_command(argv, timeout_s=timeout_s)
    except TimeoutError as error:
        raise RunError(f"{what} did not end within {timeout_s} s", fix="run it again when the machine is less busy") from error
    except OSError as error:
        raise RunError(f"{what} failed: {error}", fix=fix) from error
    if done.code:
        raise RunError(f"{what} failed (exit {done.code}):\n{done.last_words(15)}", fix=fix)


def _check(backend: Backend, python: str) -> None:
    found = _installed(python, backend.package)
    if found != backend.version:
        raise RunError(f"the new environment has {backend.package} {found or '(none)'}", fix="report this: the list of packages is wrong")


def _correct_paths(building: Path, final: Path) -> None:
    """Put the final path into the scripts, which contain the one of the temporary folder."""
    for script in (building / "bin").iterdir():
        if script.is_file() and not script.is_symlink():
            data = script.read_bytes()
            if str(building).encode() in data:
                script.write_bytes(data.replace(str(building).encode(), str(final).encode()))


def _record(backend: Backend, building: Path, python: str, version: str) -> None:
    facts = {
        "schema": environments.SCHEMA,
        "backend": backend.name,
        "version": backend.version,
        "packages": environments.digest(backend),
        "python": f"{python} {version}",
        "installed": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_atomic(building / environments.RECORD, json.dumps(facts, indent=1) + "\n", mode=0o644)


def _put(building: Path, final: Path) -> None:
    """Give the environment its name. An older one is moved away first; runs that use it keep their open files."""
    if final.exists():
        final.rename(unfinished.new_folder(final) / "environment")
    building.rename(final)
