"""primus_bootstrap.launch.backends.install: an environment is whole or absent. pip installs from a folder, so no network is used."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.core.errors import PlanError, RunError, UsageError
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
    assert sorted(path.name for path in where.iterdir()) == [".tiny-1.0.lock", "tiny-1.0"]
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
    assert [path.name for path in (tmp_path / "backends").iterdir()] == [".tiny-1.0.lock"]


def test_the_folder_of_a_killed_installation_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while its process lives: the second installation is an error. Folders of other environments stay."""
    monkeypatch.setattr(environments, "packages", lambda _backend: f"{NAME}==1.0 --hash=sha256:{wheel(tmp_path)}\n")
    where, choices = tmp_path / "backends", install.Choices(python=sys.executable, source=str(tmp_path))
    where.mkdir()
    (where / ".tiny-1.01.abcd").mkdir()
    code = (
        "import sys, pathlib; from primus_bootstrap.launch.backends import unfinished\n"
        f"with unfinished.folder(pathlib.Path({str(where)!r}, 'tiny-1.0')) as path:\n"
        "    path.joinpath('half').touch(); print(path.name, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        left = other.stdout.readline().strip()
        with pytest.raises(PlanError, match="another process installs"):
            install.install(Tiny(), where, choices, print)  # type: ignore[arg-type]
        assert (where / left / "half").exists()
        other.kill()
    assert (where / left).exists()

    assert install.install(Tiny(), where, choices, print).state == environments.OK  # type: ignore[arg-type]
    assert sorted(path.name for path in where.iterdir()) == [".tiny-1.0.lock", ".tiny-1.01.abcd", "tiny-1.0"]


def test_a_backend_can_need_one_release_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names it."""
    monkeypatch.setattr(environments, "packages", lambda _backend: "# python 3.99\n")

    with pytest.raises(UsageError, match=r"the backend needs 3\.99") as raised:
        install.install(Tiny(), tmp_path / "backends", install.Choices(python=sys.executable), print)  # type: ignore[arg-type]
    assert raised.value.fix == "pass --python with a Python 3.99"


def test_packages_for_the_gpus_of_the_nodes_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for other GPUs are not."""
    digest = wheel(tmp_path)
    lines = ("# needs amd none-such-amd==1", f"# needs nvidia {NAME}==1.0", f"{NAME}==1.0 --hash=sha256:{digest}")
    monkeypatch.setattr(environments, "packages", lambda _backend: "\n".join(lines) + "\n")
    said = list[str]()
    choices = install.Choices(python=sys.executable, source=str(tmp_path), gpu_vendor="nvidia")

    assert install.install(Tiny(), tmp_path / "backends", choices, said.append).state == environments.OK  # type: ignore[arg-type]
    assert f"install {NAME}==1.0" in said
