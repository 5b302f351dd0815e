"""A package source of the tests' own: real packages in a folder, which apt reads without a network."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.index import release_text
from primus_bootstrap.bundle.values import Target

if TYPE_CHECKING:
    from pathlib import Path


def make_package(folder: Path, name: str, *, version: str = "1.0", depends: str = "", size_bytes: int = 10) -> Path:
    """Build a package with one file of that size."""
    tree = folder / f".{name}"
    (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
    (tree / "usr" / "share" / name).mkdir(parents=True, exist_ok=True)
    (tree / "usr" / "share" / name / "content").write_bytes(b"x" * size_bytes)
    control = [
        f"Package: {name}",
        f"Version: {version}",
        "Architecture: amd64",
        "Maintainer: test <test@example.com>",
        "Description: a test",
    ]
    control += [f"Depends: {depends}"] if depends else []
    (tree / "DEBIAN" / "control").write_text("\n".join(control) + "\n")
    file = folder / f"{name}_{version.replace(':', '%3a')}_amd64.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(file)], capture_output=True, timeout=60, check=True
    )
    return file


def make_source(folder: Path) -> Sources:
    """Write the index of the packages of a folder with Debian's own program; return how apt reads it."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["dpkg-scanpackages", "--multiversion", "."], cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    (folder / "Packages").write_text(done.stdout)
    (folder / "Release").write_text(release_text(Target("bookworm", "amd64"), done.stdout))
    return Sources(f"deb [trusted=yes] file:{folder} ./\n", "list")
