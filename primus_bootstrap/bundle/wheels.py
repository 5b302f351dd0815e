"""Wheels of a Python package index, resolved and downloaded by pip itself: the only module that speaks to pip."""

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
from primus_bootstrap.bundle.program import run, why

if TYPE_CHECKING:
    from collections.abc import Iterable

_LIMIT_S = 900.0
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def python_of() -> str:
    """Return what wheels are resolved for: the Python and the processor of this machine."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}"


def resolve_together(requirements: Iterable[str]) -> list[Locked] | Unresolved:
    """Ask the index for these requirements and all that they depend on, as they are for an empty environment on this machine."""
    asked = sorted(requirements)
    argv = [*_PIP, "install", "--dry-run", "--ignore-installed", "--only-binary=:all:", "--report=-", *asked]
    done = run(argv, timeout_s=_LIMIT_S)
    if done.code:
        return Unresolved(
            ", ".join(asked), why(done), "see that pip reaches its index (`pip config list`), and that it carries these versions"
        )
    found = [_locked(one) for one in json.loads(done.stdout)["install"]]
    if bare := [item.name for item in found if not item.sha256]:
        return Unresolved(", ".join(bare), "the index states no SHA-256", "use an index that does")
    return found


def _locked(found: dict[str, Any]) -> Locked:
    """Return one file of pip's report as it is locked, under the requirement that means it alone."""
    url, stated = found["download_info"]["url"], found["download_info"].get("archive_info", {})
    name, version = found["metadata"]["name"].lower().replace("_", "-"), found["metadata"]["version"]
    sha256 = stated.get("hashes", {}).get("sha256", "")
    file = Path(unquote(urlsplit(url).path)).name
    return Locked("wheel", f"{name}=={version}", version, url=_plain(url), sha256=sha256, size_bytes=0, path=f"wheels/{file}", pinned=False)


def resolve(need: Need) -> Locked | Unresolved:
    """Ask the index which file a requirement means on this machine."""
    argv = [*_PIP, "install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary=:all:", "--report=-", need.name]
    done = run(argv, timeout_s=_LIMIT_S)
    if done.code:
        return Unresolved(need.name, why(done), "see that pip reaches its index (`pip config list`), and that it carries this version")
    found = _locked(json.loads(done.stdout)["install"][0])
    if need.sha256 and need.sha256 != found.sha256:
        reason = f"the index's file has the sum {found.sha256 or 'of no known kind'}, the role expects {need.sha256}"
        return Unresolved(need.name, reason, "find out which one is right; the role's sum is a variable of hosts.yaml")
    if not found.sha256:
        return Unresolved(need.name, "the index states no SHA-256", "use an index that does")
    return replace(found, name=need.name, pinned=bool(need.sha256))


def fetch(item: Locked, part: Path) -> str:
    """Download a wheel to a path; return what failed, or an empty text."""
    with tempfile.TemporaryDirectory(prefix="primus-bundle-") as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text(f"{item.name} --hash=sha256:{item.sha256}\n", encoding="utf-8")
        argv = [*_PIP, "download", "--no-deps", "--only-binary=:all:", "--require-hashes", f"--dest={folder}", f"--requirement={wanted}"]
        done = run(argv, timeout_s=_LIMIT_S)
        found = [path for path in Path(folder).glob("*.whl") if path.name == Path(item.path).name]
        if done.code or not found:
            return why(done) or "pip found another file"
        part.write_bytes(found[0].read_bytes())
    return ""


def index_text(names: list[str]) -> str:
    """Return the page of links that `pip --find-links` reads."""
    links = "".join(f'<a href="{name}">{name}</a><br>\n' for name in sorted(names))
    return f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n"


def _plain(url: str) -> str:
    """Return a URL without a login, which pip takes from its own settings."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
