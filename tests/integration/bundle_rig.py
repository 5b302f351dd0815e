"""Create apt sources, web servers and package indexes for tests of bundles."""

from __future__ import annotations

import hashlib
import http.server
import subprocess
import threading
import zipfile
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import Target
from primus_bootstrap.bundle.index import release_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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
    """Write the index of a folder of packages with dpkg-scanpackages; return the source for apt."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["dpkg-scanpackages", "--multiversion", "."], cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    (folder / "Packages").write_text(done.stdout)
    (folder / "Release").write_text(release_text(Target("bookworm", "amd64"), done.stdout))
    return Sources(f"deb [trusted=yes] file:{folder} ./\n", "list")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Disable the log."""


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve a folder over HTTP on loopback during the block; yield its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def make_index(folder: Path, wheels: Mapping[str, str]) -> str:
    """Write an index with one wheel per name (version 1.0, `needed` 2.0) and its dependencies; return its URL."""
    for name, needs in wheels.items():
        version = "2.0" if name == "needed" else "1.0"
        place = folder / name
        place.mkdir(parents=True)
        file = place / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        texts = {
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            + (f"Requires-Dist: {needs}\n" if needs else ""),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/RECORD": "",
        }
        with zipfile.ZipFile(file, "w") as archive:
            for path, text in texts.items():
                archive.writestr(path, text)
        total = hashlib.sha256(file.read_bytes()).hexdigest()
        (place / "index.html").write_text(f'<a href="{file.name}#sha256={total}">{file.name}</a>')
    return folder.as_uri()
