"""primus_bootstrap.launch.backends.install: an environment is whole or absent. pip installs from a folder, so no network is used."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError, RunError
from primus_bootstrap.launch.backends import environments, install
from primus_bootstrap.launch.backends.registry import backend

if TYPE_CHECKING:
    from pathlib import Path

NAME = "tiny_backend"


@dataclass(frozen=True)
class Tiny:
    """A backend of one small package."""

    name: str = "tiny"
    version: str = "1.0"
    package: str = NAME


def wheel(folder: Path) -> str:
    """Write the package, and return the hash of its wheel."""
    path = folder / f"{NAME}-1.0-py3-none-any.whl"
    info = f"{NAME}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{NAME}.py", "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{NAME}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_an_environment_is_installed_once_and_replaced_if_the_list_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the package, and torch of the Python that creates it. A failed installation leaves the old one."""
    lists = {"now": f"# needs torch==0.0\n{NAME}==1.0 --hash=sha256:{wheel(tmp_path)}\n"}
    monkeypatch.setattr(environments, "packages", lambda _backend: lists["now"])
    where, said = tmp_path / "backends", list[str]()
    choices = install.Choices(python=sys.executable, source=str(tmp_path))

    found = install.install(Tiny(), where, choices, said.append)  # type: ignore[arg-type] # only these fields are used

    assert (found.state, found.path) == (environments.OK, where / "tiny-1.0")
    code = f"import {NAME}, importlib.util as u; print(u.find_spec('torch') is not None)"
    assert subprocess.run([str(found.python), "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
    pip = (found.path / "bin" / "pip").read_text().splitlines()[0]
    assert str(found.path) in pip

    install.install(Tiny(), where, choices, said.append)  # type: ignore[arg-type]
    assert said[-1] == f"{found.path} is installed"

    lists["now"] = f"# needs torch==0.0\n{NAME}==1.0 --hash=sha256:{'0' * 64}\n"
    assert environments.find(Tiny(), where).state == environments.OTHER_PACKAGES  # type: ignore[arg-type]
    with pytest.raises(RunError, match="pip failed"):
        install.install(Tiny(), where, choices, said.append)  # type: ignore[arg-type]
    assert [path.name for path in where.iterdir()] == ["tiny-1.0"]
    assert environments.find(Tiny(), where).state == environments.OTHER_PACKAGES  # type: ignore[arg-type]


def test_a_missing_environment_is_an_error_with_the_command_that_installs_it(tmp_path: Path) -> None:
    """An unfinished folder counts as missing."""
    (tmp_path / "megatron-0.19.2" / "bin").mkdir(parents=True)
    with pytest.raises(PlanError) as raised:
        environments.interpreter(backend("megatron"), tmp_path)

    assert raised.value.what == f"megatron 0.19.2 is not installed in {tmp_path}"
    assert raised.value.fix.startswith(f"primus-cli backend install megatron --folder {tmp_path}; ")


def test_amd_hosts_need_an_index_or_a_python_with_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch that pip finds by itself is for NVIDIA GPUs."""
    monkeypatch.setattr(environments, "packages", lambda _backend: "# needs torch==2.13.0\n")
    monkeypatch.setattr(install, "_TORCH_FOLDER", "import sys; sys.exit(1)")

    with pytest.raises(PlanError, match="this host has AMD GPUs"):
        install.install(Tiny(), tmp_path / "backends", install.Choices(python=sys.executable, gpu_vendor="amd"), print)  # type: ignore[arg-type]
    assert list((tmp_path / "backends").iterdir()) == []
