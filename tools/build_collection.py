#!/usr/bin/env python3
"""Build the Ansible collection primus.bootstrap from the roles: one archive that `ansible-galaxy collection install` takes.

    tools/build_collection.py [--out dist]

The roles and `plugins/` are the only source. A collection finds plug-ins in `plugins/` only, so the build moves those beside the roles, and
gives filters, lookups and imports their full names. Ansible finds modules, actions and roles of the own collection by their short
names. Only files that git tracks are packed, and the same files give the same archive.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from primus_bootstrap import __version__
from primus_bootstrap.core.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
# Folders of plug-ins beside a role, and their folders in a collection.
PLUGIN_FOLDERS = {
    "library": "modules",
    "module_utils": "module_utils",
    "action_plugins": "action",
    "filter_plugins": "filter",
    "lookup_plugins": "lookup",
}
_SYMLINK, _EXECUTABLE = "120000", "100755"
# Time of all files in the archive, unless SOURCE_DATE_EPOCH is set: that of hatchling, which builds the wheel.
_EPOCH_S = 1580601600
_TEMPLATED = {".yml", ".j2"}


class File(NamedTuple):
    """A file of the collection."""

    content: bytes
    executable: bool


def build(root: Path, out: Path) -> Path:
    """Build the archive and return its path.

    Raises:
        PlanError: `root` is no clone of the repository, or two roles have different plug-ins of one name.
    """
    metadata = {**yaml.safe_load((root / "collection" / "galaxy.yml").read_text(encoding="utf-8")), "version": __version__}
    name = f"{metadata['namespace']}.{metadata['name']}"
    packed = pack(metadata, collect(root, name))
    archive = out / f"{name.replace('.', '-')}-{__version__}.tar.gz"
    out.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(packed)
    return archive


def collect(root: Path, name: str) -> dict[str, File]:
    """Return the files of the collection by path, with the names as it needs them."""
    files: dict[str, File] = {}
    filters: set[str] = set()
    for source, executable in tracked(root, "plugins", "roles", "collection", "docs", "LICENSE"):
        path = target(source)
        if path is None:
            continue
        file = File((root / source).read_bytes(), executable)
        if files.get(path, file) != file:
            raise PlanError(f"{source} differs from the {PurePosixPath(path).name} of another role", fix="rename one of the two files")
        if path.startswith("plugins/filter/") and path not in files:
            filters |= filter_names(root / source)
        files[path] = file
    names = Names(name, stems(files, "module_utils"), stems(files, "modules"), stems(files, "lookup"), frozenset(filters))
    return {path: File(rewrite(path, file.content, names), file.executable) for path, file in sorted(files.items())}


def tracked(root: Path, *parts: str) -> list[tuple[str, bool]]:
    """Return the files that git tracks below some paths, and whether each is executable. A link counts as the file that it points to."""
    done = subprocess.run(["git", "ls-files", "--stage", "-z", "--", *parts], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PlanError(f"{root}: git ls-files failed: {done.stderr.strip()}", fix="run the build in a clone of the repository")
    entries = [entry.partition("\t") for entry in done.stdout.split("\0") if entry]
    present = [(path, fields.split()[0]) for fields, _, path in entries if (root / path).is_file()]
    return [(path, mode == _EXECUTABLE or (mode == _SYMLINK and os.access(root / path, os.X_OK))) for path, mode in present]


def target(source: str) -> str | None:
    """Return the path in the collection of a file of the repository; None for one that it does not contain."""
    top, *rest = PurePosixPath(source).parts
    if top == "collection":
        return None if rest == ["galaxy.yml"] else "/".join(rest)
    if top != "roles":
        return source
    _, folder, *below = rest
    if folder == "molecule":
        return None
    return f"plugins/{PLUGIN_FOLDERS[folder]}/{'/'.join(below)}" if folder in PLUGIN_FOLDERS else source


class Names(NamedTuple):
    """The short names of the collection's plug-ins that are rewritten to full names."""

    collection: str
    module_utils: frozenset[str]
    modules: frozenset[str]
    lookups: frozenset[str]
    filters: frozenset[str]

    @property
    def package(self) -> str:
        """The Python package of the shared code."""
        return f"ansible_collections.{self.collection}.plugins.module_utils"


def stems(files: Iterable[str], kind: str) -> frozenset[str]:
    """Return the names of the plug-ins of a kind."""
    return frozenset(PurePosixPath(path).stem for path in files if path.startswith(f"plugins/{kind}/"))


def filter_names(path: Path) -> set[str]:
    """Return the names of the filters of a file, which only the file itself knows."""
    try:
        return set(runpy.run_path(str(path))["FilterModule"]().filters())
    except ImportError as error:
        raise PlanError(f"{path}: {error}", fix="make setup collection") from error


def rewrite(path: str, content: bytes, names: Names) -> bytes:
    """Return the content of a file with full names where Ansible needs them."""
    if path.startswith("plugins/") and path.endswith(".py"):
        return rewrite_plugin(content.decode(), names).encode()
    if path.startswith("roles/") and PurePosixPath(path).suffix in _TEMPLATED:
        return rewrite_template(content.decode(), names).encode()
    return content


def rewrite_plugin(text: str, names: Names) -> str:
    """Return a plug-in that imports shared code from the collection, and whose actions call its modules by full name."""
    util, module = _one_of(names.module_utils), _one_of(names.modules)
    text = re.sub(rf"\bfrom ansible\.module_utils\.({util}) import\b", rf"from {names.package}.\1 import", text)
    text = re.sub(rf"\bfrom ansible\.module_utils import (?=(?:{util})\b)", f"from {names.package} import ", text)
    return re.sub(rf'\bmodule_name="({module})"', rf'module_name="{names.collection}.\1"', text)


def rewrite_template(text: str, names: Names) -> str:
    """Return a file of a role with the full names of filters and lookups."""
    one, lookup = _one_of(names.filters), _one_of(names.lookups)
    text = re.sub(rf"(\|\s*)({one})\b", rf"\1{names.collection}.\2", text)
    text = re.sub(rf"(\|\s*map\(\s*')({one})'", rf"\1{names.collection}.\2'", text)
    return re.sub(rf"(\b(?:lookup|query|q)\(\s*')({lookup})'", rf"\1{names.collection}.\2'", text)


def _one_of(names: Iterable[str]) -> str:
    """Return a pattern that matches one of the names; the longest first."""
    return "|".join(sorted(map(re.escape, names), key=lambda name: (-len(name), name))) or r"(?!)"


def pack(metadata: Mapping[str, Any], files: Mapping[str, File]) -> bytes:
    """Return the archive, with the two lists of contents that ansible-galaxy checks."""
    listed = _json({"files": [*map(_folder_entry, folders(files)), *(_file_entry(*item) for item in files.items())], "format": 1})
    keys = ("namespace", "name", "version", "authors", "readme", "tags", "description", "license", "license_file", "dependencies")
    links = ("repository", "documentation", "homepage", "issues")
    information = {**{key: metadata.get(key) for key in (*keys, *links)}, "license": metadata.get("license", [])}
    manifest = _json({"collection_info": information, "file_manifest_file": _file_entry("FILES.json", listed), "format": 1})
    written = io.BytesIO()
    mtime = int(os.environ.get("SOURCE_DATE_EPOCH") or _EPOCH_S)
    with gzip.GzipFile(filename="", mode="wb", fileobj=written, mtime=mtime) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path in folders(files):
            archive.addfile(_member(path, mtime, mode=0o755, type=tarfile.DIRTYPE))
        for path, file in {"MANIFEST.json": manifest, "FILES.json": listed, **files}.items():
            mode = 0o755 if file.executable else 0o644
            archive.addfile(_member(path, mtime, mode=mode, size=len(file.content)), io.BytesIO(file.content))
    return written.getvalue()


def folders(files: Iterable[str]) -> list[str]:
    """Return all folders of the files, parents first."""
    return sorted({str(parent) for path in files for parent in PurePosixPath(path).parents})


def _folder_entry(path: str) -> dict[str, Any]:
    return {"name": path, "ftype": "dir", "chksum_type": None, "chksum_sha256": None, "format": 1}


def _file_entry(path: str, file: File) -> dict[str, Any]:
    return {"name": path, "ftype": "file", "chksum_type": "sha256", "chksum_sha256": hashlib.sha256(file.content).hexdigest(), "format": 1}


def _json(value: Any) -> File:
    return File(json.dumps(value, indent=1).encode(), executable=False)


def _member(path: str, mtime: int, **values: Any) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    for name, value in {"mtime": mtime, **values}.items():
        setattr(member, name, value)
    return member


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the archive and print its path."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the archive (default: dist)")
    try:
        print(build(ROOT, parser.parse_args(arguments).out))
    except PlanError as error:
        print(f"build_collection.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
