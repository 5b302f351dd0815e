"""Write the packages launch and core and the Python part of PyYAML into one zipapp, so that a host needs only python3 (3.9 or later).

The build is reproducible: names are sorted, times are fixed, and nothing is compressed, because zlib's output differs between versions.
Hosts compare the file by its SHA-256.

    python3 -m primus_bootstrap.launch.zipapp_file launch.pyz
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.atomic_files import write_if_changed

if TYPE_CHECKING:
    from collections.abc import Iterator

_SHEBANG = b"#!/usr/bin/env python3\n"
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip file
_MAIN = "import sys\n\nfrom primus_bootstrap.launch.__main__ import main\n\nsys.exit(main())\n"
_SUFFIXES = (".py", ".yml", ".yaml", ".json", ".txt")


def zipapp_bytes(workloads: Path | None = None) -> bytes:
    """Return the zipapp; with `workloads`, the training programs of that folder are included."""
    buffer = io.BytesIO()
    buffer.write(_SHEBANG)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name, content in sorted([*_members(), *(_tree(workloads, "workloads") if workloads else ())]):
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.create_system = 3  # Unix
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def digest(content: bytes) -> str:
    """Return the SHA-256 of the zipapp as hexadecimal text."""
    return hashlib.sha256(content).hexdigest()


def write_zipapp(path: Path, workloads: Path | None = None) -> str:
    """Write the zipapp unless the file has the same content; return its SHA-256."""
    content = zipapp_bytes(workloads)
    write_if_changed(path, content, mode=0o755)
    return digest(content)


def _members() -> Iterator[tuple[str, bytes]]:
    root = Path(__file__).resolve().parents[1]
    yield "__main__.py", _MAIN.encode()
    yield "primus_bootstrap/__init__.py", (root / "__init__.py").read_bytes()
    for package in ("core", "launch"):
        yield from _tree(root / package, f"primus_bootstrap/{package}")
    yield from _tree(Path(yaml.__file__).resolve().parent, "yaml")
    for file in metadata.files("PyYAML") or ():
        if file.name == "LICENSE":
            yield "yaml/LICENSE", Path(str(file.locate())).read_bytes()


def _tree(folder: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in _SUFFIXES and "__pycache__" not in path.parts:
            yield f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def main() -> int:
    """Write the zipapp to the path in the first argument and print its SHA-256."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python3 -m primus_bootstrap.launch.zipapp_file FILE\n")
        return 2
    sys.stdout.write(write_zipapp(Path(sys.argv[1])) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
