"""Collect the code state of a run: git commit and patch, a digest of the program's folder, and copies of small files."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.launch import masking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

PATCH_BYTES = 1 << 20  # a larger patch contains generated files or data; only its size and digest are recorded
COPY_BYTES = 1 << 20
_UNTRACKED = 200
_GIT_TIMEOUT_S = 60
_GIT_BYTES = 1 << 30  # output limit of git, for a diff with large binary files
_DIGEST_FILES, _DIGEST_SUFFIXES = 5000, frozenset({".py", ".sh", ".yaml", ".yml", ".json", ".toml", ".cfg"})
# An assignment in YAML, JSON, TOML, INI, shell or Python, also as a line of a patch.
_SETTING = re.compile(r"""^([+\- ]?\s*(?:export\s+)?["']?)([A-Za-z_][\w.-]*)(["']?\s*[:=]\s*["']?)([^\s"'#,]{8,})""", re.MULTILINE)
_HARMLESS_VALUE = re.compile(r"<.*>|[\d.eE+_-]+|[./~$].*|[a-z_.]+\(.*|os\..*|[\[{(].*")


@dataclass(frozen=True)
class FileCopy:
    """A file of a run with its digest and masked content. `copy` is empty if the file is too large or not text."""

    path: str
    name: str
    size: int
    sha256: str
    masked: bool = False
    copy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, without the content."""
        return {"path": self.path, "copy": self.name if self.copy else "", "size": self.size, "sha256": self.sha256, "masked": self.masked}


@dataclass(frozen=True)
class Repository:
    """The state of one git work tree. `patch` is the diff against `commit`, empty if there is none or it is too large."""

    root: str
    commit: str
    branch: str
    remote: str
    patch: str
    patch_bytes: int
    patch_sha256: str
    patch_masked: bool
    untracked: tuple[str, ...]

    def to_json(self, patch_name: str) -> dict[str, Any]:
        """Return it as plain data; the patch is in the file `patch_name`."""
        return {
            "root": self.root,
            "commit": self.commit,
            "branch": self.branch,
            "remote": self.remote,
            "dirty": bool(self.patch_bytes),
            "patch": patch_name if self.patch else "",
            "patch_bytes": self.patch_bytes,
            "patch_sha256": self.patch_sha256,
            "patch_masked": self.patch_masked,
            "patch_left_out": self.patch_bytes > PATCH_BYTES,
            "untracked": list(self.untracked),
        }


def repositories(folders: Iterable[Path], secrets: Sequence[str]) -> tuple[Repository, ...]:
    """Return the git work trees that contain the folders, each once; folders outside git are skipped."""
    roots: dict[str, None] = {}
    for folder in folders:
        root = _git(folder, "rev-parse", "--show-toplevel")
        if root:
            roots.setdefault(root.strip())
    return tuple(_repository(Path(root), secrets) for root in roots)


def copy_files(words: Iterable[str], cwd: Path, secrets: Sequence[str]) -> tuple[FileCopy, ...]:
    """Return copies of the files that the words of a command name, alone or after `=`."""
    copies: dict[str, FileCopy] = {}
    for path in _named_files(words, cwd):
        if str(path) not in copies:
            copies[str(path)] = copy_file(path, f"{len(copies):02d}-{path.name}", secrets)
    return tuple(copies.values())


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def folder_digest(folder: Path) -> dict[str, Any]:
    """Return a digest of the code and settings files below a folder; `whole` is false if there were too many files."""
    digest = hashlib.sha256()
    found = list(islice(_code_files(folder), _DIGEST_FILES + 1))
    for path in found[:_DIGEST_FILES]:
        digest.update(f"{path.relative_to(folder).as_posix()}\0{file_sha256(path)}\n".encode())
    return {"folder": str(folder), "files": len(found[:_DIGEST_FILES]), "whole": len(found) <= _DIGEST_FILES, "sha256": digest.hexdigest()}


def _code_files(folder: Path) -> Iterator[Path]:
    """Yield files in a fixed order; skip hidden folders, virtual environments, run folders and links to folders."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not _is_excluded(Path(parent) / name))
        for name in sorted(names):
            path = Path(parent) / name
            if path.suffix in _DIGEST_SUFFIXES and path.is_file() and path.stat().st_size <= COPY_BYTES:
                yield path


def _is_excluded(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("pyvenv.cfg", "plan.json", "snapshot"))


def mask_settings(text: str, secrets: Sequence[str]) -> str:
    """Mask the given secrets, values with the shape of a secret, and values of keys with a secret's name."""
    return masking.mask_text(_SETTING.sub(_mask_setting, text), secrets)


def _mask_setting(match: re.Match[str]) -> str:
    start, name, between, value = match.groups()
    secret = masking.is_secret_name(name) and not _HARMLESS_VALUE.fullmatch(value)
    return f"{start}{name}{between}{masking.MASK}" if secret else match[0]


def _named_files(words: Iterable[str], cwd: Path) -> Iterator[Path]:
    for word in words:
        for text in (word, word.partition("=")[2]):
            try:
                if text and (cwd / text).is_file():
                    yield (cwd / text).absolute()
            except (OSError, ValueError):
                continue  # the word is too long for a path


def copy_file(path: Path, name: str, secrets: Sequence[str]) -> FileCopy:
    """Return a copy of a file under another name."""
    size = path.stat().st_size
    if size > COPY_BYTES:
        return FileCopy(str(path), name, size, file_sha256(path))
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return FileCopy(str(path), name, size, sha256)
    copy = mask_settings(text, secrets)
    return FileCopy(str(path), name, size, sha256, copy != text, copy)


def _repository(root: Path, secrets: Sequence[str]) -> Repository:
    patch = _git(root, "diff", "HEAD", "--binary", "--no-color", "--no-ext-diff") or ""
    size = len(patch.encode("utf-8", "surrogateescape"))
    masked = mask_settings(patch, secrets) if size <= PATCH_BYTES else ""
    return Repository(
        root=str(root),
        commit=(_git(root, "rev-parse", "HEAD") or "").strip(),
        branch=(_git(root, "rev-parse", "--abbrev-ref", "HEAD") or "").strip(),
        remote=masking.mask_text((_git(root, "config", "--get", "remote.origin.url") or "").strip(), secrets),
        patch=masked,
        patch_bytes=size,
        patch_sha256=hashlib.sha256(patch.encode("utf-8", "surrogateescape")).hexdigest() if patch else "",
        patch_masked=bool(masked) and masked != patch,
        untracked=tuple((_git(root, "ls-files", "--others", "--exclude-standard") or "").splitlines()[:_UNTRACKED]),
    )


def _git(folder: Path, *words: str) -> str | None:
    """Return the output of git; None if git is missing, fails or exceeds its time limit.

    A work tree of another account is read, too; its hooks and file-system monitors are not run.
    """
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-C", str(folder), *words]
    try:
        done = run_command(command, timeout_s=_GIT_TIMEOUT_S, errors="surrogateescape", max_output_bytes=_GIT_BYTES)
    except OSError:
        return None
    return done.stdout if done.code == 0 else None
