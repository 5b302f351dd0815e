"""Resolve and download wheels with pip."""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from primus_bootstrap.bundle.artifacts import Locked, Need, Unresolved
from primus_bootstrap.bundle.backend_wheels import python_options
from primus_bootstrap.bundle.commands import failure, run

if TYPE_CHECKING:
    from collections.abc import Iterable

_LIMIT_S = 900.0
_INDEX_FIX = "check that pip can access its index (`pip config list`), and that the index has this version"
_NO_SHA256 = ("the index provides no SHA-256", "use an index that provides it")
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def python_tag() -> str:
    """Return the Python version and architecture of this machine, for which wheels are resolved."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}"


def resolve_together(requirements: Iterable[str]) -> list[Locked] | Unresolved:
    """Resolve requirements with their dependencies for an empty environment on this machine."""
    names = sorted(requirements)
    argv = [*_PIP, "install", "--dry-run", "--ignore-installed", "--only-binary=:all:", "--report=-", *names]
    done = run(argv, timeout_s=_LIMIT_S)
    if done.code:
        return Unresolved(", ".join(names), failure(done), _INDEX_FIX)
    items = [_locked(entry) for entry in json.loads(done.stdout)["install"]]
    if unsigned := [item.name for item in items if not item.sha256]:
        return Unresolved(", ".join(unsigned), *_NO_SHA256)
    return items


def _locked(entry: dict[str, Any]) -> Locked:
    """Return an entry of pip's report as an item of a lock with an exact requirement."""
    url, archive = entry["download_info"]["url"], entry["download_info"].get("archive_info", {})
    name, version = entry["metadata"]["name"].lower().replace("_", "-"), entry["metadata"]["version"]
    sha256 = archive.get("hashes", {}).get("sha256", "")
    file = Path(unquote(urlsplit(url).path)).name
    return Locked("wheel", f"{name}=={version}", version, url=_plain(url), sha256=sha256, size_bytes=0, path=f"wheels/{file}", pinned=False)


def resolve(need: Need) -> Locked | Unresolved:
    """Resolve a requirement to a file for this machine, without dependencies."""
    requirement, options = python_options(need.name)
    words = ["--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--report=-", *options]
    # pip wants a folder for another Python. Nothing is written into it.
    argv = [*_PIP, "install", *words, *(["--target=unused"] if options else []), requirement]
    done = run(argv, timeout_s=_LIMIT_S)
    if done.code:
        return Unresolved(need.name, failure(done), _INDEX_FIX)
    item = _locked(json.loads(done.stdout)["install"][0])
    if need.sha256 and need.sha256 != item.sha256:
        reason = f"the file of the index has the sha256 {item.sha256 or '(none)'}, the role expects {need.sha256}"
        return Unresolved(need.name, reason, "find out which one is correct; the role's checksum is a variable of hosts.yaml")
    if not item.sha256:
        return Unresolved(need.name, *_NO_SHA256)
    return replace(item, name=need.name, pinned=bool(need.sha256))


def fetch(item: Locked, part: Path) -> str:
    """Download a wheel to a path; return the failure, or an empty string."""
    with tempfile.TemporaryDirectory(prefix="primus-bundle-") as folder:
        requirements = Path(folder) / "requirements.txt"
        requirement, python = python_options(item.name)
        requirements.write_text(f"{requirement} --hash=sha256:{item.sha256}\n", encoding="utf-8")
        options = ("--no-deps", "--only-binary=:all:", "--require-hashes", f"--dest={folder}", f"--requirement={requirements}")
        done = run([*_PIP, "download", *python, *options], timeout_s=_LIMIT_S)
        file = Path(folder) / Path(item.path).name
        if done.code or not file.is_file():
            return failure(done) or "pip downloaded another file"
        part.write_bytes(file.read_bytes())
    return ""


def index_text(names: list[str]) -> str:
    """Return the HTML page of links for `pip --find-links`."""
    links = "".join(f'<a href="{name}">{name}</a><br>\n' for name in sorted(names))
    return f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n"


def _plain(url: str) -> str:
    """Return a URL without credentials, which pip adds from its own settings."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
