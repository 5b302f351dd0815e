"""primus_bootstrap.launch.zipapp_file: the zipapp for hosts."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

import pytest

import primus_bootstrap.launch
from primus_bootstrap.launch import zipapp_file

PACKAGE = Path(primus_bootstrap.launch.__file__).parents[1]
SHIPPED = ("core", "launch")
OLDEST = (3, 9)


def test_the_build_is_reproducible(tmp_path: Path) -> None:
    """Hosts compare the file by its digest; the bytes do not depend on zlib."""
    first, second = zipapp_file.write_zipapp(tmp_path / "a.pyz"), zipapp_file.write_zipapp(tmp_path / "b.pyz")
    with zipfile.ZipFile(tmp_path / "a.pyz") as archive:
        entries = archive.infolist()

    assert first == second
    assert (tmp_path / "a.pyz").read_bytes() == (tmp_path / "b.pyz").read_bytes()
    assert {(entry.date_time, entry.compress_type) for entry in entries} == {((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED)}


def test_the_zipapp_contains_data_files_and_the_licence_of_pyyaml(tmp_path: Path) -> None:
    """PyYAML's licence requires its text."""
    zipapp_file.write_zipapp(tmp_path / "a.pyz")
    names = set(zipfile.ZipFile(tmp_path / "a.pyz").namelist())

    data = {str(path.relative_to(PACKAGE.parent)) for path in (PACKAGE / "launch" / "data").rglob("*.*") if "__pycache__" not in path.parts}
    assert {"__main__.py", "yaml/__init__.py", "yaml/LICENSE"} | data <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


@pytest.mark.parametrize(
    "module", sorted(str(path.relative_to(PACKAGE)) for folder in SHIPPED for path in (PACKAGE / folder).rglob("*.py"))
)
def test_every_module_parses_with_python_3_9(module: str) -> None:
    """RHEL 9 has Python 3.9."""
    ast.parse((PACKAGE / module).read_text(), feature_version=OLDEST)
