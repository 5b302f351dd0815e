"""The pinned release of Kubespray on the controller: a checked copy in the user's cache, with a Python environment of its own.

Nothing in it is changed. It comes from a folder (`PRIMUS_KUBESPRAY_DIR`), whose commit is checked where it has one, from an archive on
the controller or in the bundle, whose sha256 and content are checked, or from git, whose commit is. With a bundle nothing else is reached.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.kubespray_release import Release, load_release
from primus_bootstrap.kubernetes.bundled import from_bundle
from primus_bootstrap.kubernetes.git_tree import tree_of_archive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.kubernetes.source import Source

FOLDER_VARIABLE = "PRIMUS_KUBESPRAY_DIR"
_FETCH_S, _INSTALL_S = 900, 1800
_READY = ".primus-ready"
_MARK = "galaxy.yml"


@dataclass(frozen=True, slots=True)
class Ready:
    """A release that can run: `checkout` is its folder, `programs` that of its own `ansible-playbook`."""

    checkout: Path
    programs: Path


def cache_folder() -> Path:
    """Return where releases are kept: below the user's cache, for all clusters."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "primus-bootstrap" / "kubespray"


def make_ready(source: Source, *, cache: Path | None = None) -> Ready:
    """Return the release, fetched and installed where this was not done before; killed at any moment, the next call finishes it.

    Raises:
        PlanError: it cannot be had, or it is not the release that is pinned.
    """
    release, cache = load_release(), cache or cache_folder()
    given = source.folder or os.environ.get(FOLDER_VARIABLE, "")
    source = from_bundle(replace(source, folder=given)) if source.bundle else source
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _alone(cache / "lock"):
        checkout = _given(Path(given), release) if given else _fetched(source, release, cache)
        return Ready(checkout, _environment(source, release, cache) / "bin")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one process at a time fill the cache."""
    with path.open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _given(folder: Path, release: Release) -> Path:
    """Return a folder that the user names. Its version is the release's own statement; of a checkout git says what it holds."""
    stated = folder.expanduser().absolute() / _MARK
    found = re.search(r"^version: *(\S+)", stated.read_text(encoding="utf-8"), re.MULTILINE) if stated.is_file() else None
    if found is None or f"v{found[1]}" != release.version:
        what = f"{folder} is {f'Kubespray v{found[1]}' if found else 'no checkout of Kubespray'}, and this version drives {release.version}"
        raise PlanError(what, fix=f"check {release.version} out there, or unset {FOLDER_VARIABLE}")
    if (stated.parent / ".git").exists():
        _refuse_changed(stated.parent, release)
    return stated.parent


def _refuse_changed(folder: Path, release: Release) -> None:
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    other = f"name another folder (kubespray_folder, {FOLDER_VARIABLE}), or none and let it be fetched"
    fix = f"let git read {folder}, or {other}"
    found = _call([*git, "rev-parse", "HEAD"], 60, "read Kubespray's commit", fix).strip()
    if found != release.commit:
        what = f"{folder} is at commit {found}, and Kubespray {release.version} is {release.commit}"
        raise PlanError(what, fix=f"git -C {folder} checkout {release.version}, or {other}")
    changed = _call([*git, "status", "--porcelain"], 60, "see whether Kubespray was changed", fix).splitlines()
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        what = f"{folder} is not Kubespray {release.version} as it was released: {changed[0].strip()}{more}"
        raise PlanError(what, fix=f"put it back (git -C {folder} status), or {other}; settings belong in hosts.yaml")


def _fetched(source: Source, release: Release, cache: Path) -> Path:
    target = cache / (f"archive-{source.sha256[:12]}" if source.archive else release.version)
    if (target / _READY).is_file():
        return target
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as draft:
        found = _unpacked(source, Path(draft), release) if source.archive else _cloned(source, Path(draft), release)
        (found / _READY).touch()
        shutil.rmtree(target, ignore_errors=True)
        found.rename(target)
    return target


def _unpacked(source: Source, draft: Path, release: Release) -> Path:
    archive = Path(source.archive).expanduser()
    if not archive.is_file():
        raise PlanError(f"no archive of Kubespray at {archive}", fix="check the path, or leave it out and let git fetch the release")
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        what = f"{archive} has sha256 {found}, expected {source.sha256 or 'one that is stated'}"
        raise PlanError(what, fix=f"fetch the archive of {release.version} again, or state the sum that you trust")
    if wrong := what_is_wrong(archive, release):
        raise PlanError(f"{archive} {wrong}", fix=f"fetch the archive of {release.version} again; nothing in the release may be changed")
    with tarfile.open(archive) as packed:
        packed.extractall(draft, filter="data")
    return _given(next(draft.glob(f"*/{_MARK}"), draft / _MARK).parent, release)


def what_is_wrong(archive: Path, release: Release | None = None) -> str:
    """Say why an archive is not the pinned release, whatever its sum, or nothing."""
    release = release or load_release()
    try:
        found = tree_of_archive(archive)
    except ValueError as error:
        return f"is no archive of a release: {error}"
    what = f"is not Kubespray {release.version} as it was released: it holds the tree {found}, commit {release.commit} holds {release.tree}"
    return "" if found == release.tree else what


def _cloned(source: Source, draft: Path, release: Release) -> Path:
    checkout = draft / "kubespray"
    url = source.url or release.url
    fix = f"let the controller reach {url}, or give the release as a folder ({FOLDER_VARIABLE}) or as an archive"
    _call(["git", "clone", "-q", "--depth", "1", "--branch", release.version, url, str(checkout)], _FETCH_S, "fetch Kubespray", fix)
    found = _call(["git", "-C", str(checkout), "rev-parse", "HEAD"], 60, "read Kubespray's commit", fix).strip()
    if found != release.commit:
        what = f"{release.version} at {url} is commit {found}, expected {release.commit}: the tag was moved"
        raise PlanError(what, fix="find out why before anything of it runs; a mirror must hold the tag as it was released")
    return checkout


def environment_folder(release: Release, cache: Path) -> Path:
    """Return where the release's own Ansible is for this Python."""
    marks = "\n".join((sys.version, *release.requirements))
    return cache / f"venv-{hashlib.sha256(marks.encode()).hexdigest()[:12]}"


def _environment(source: Source, release: Release, cache: Path) -> Path:
    """Return a virtual environment with what the release asks for, exactly."""
    target = environment_folder(release, cache)
    if (target / _READY).is_file():
        return target
    shutil.rmtree(target, ignore_errors=True)  # its programs name its own path, so that it is not made elsewhere and moved
    fix = "let the controller reach a package index, or give a folder of wheels for " + ", ".join(release.requirements)
    _call([sys.executable, "-m", "venv", str(target)], _INSTALL_S, "make an environment for Kubespray's Ansible", "install python3-venv")
    closed = ("--no-index", "--find-links", str(Path(source.packages).expanduser())) if source.packages else ()
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *closed, *release.requirements]
    _call(pip, _INSTALL_S, "install Kubespray's Ansible", fix)
    (target / _READY).touch()
    return target


def _call(argv: Sequence[str], limit_s: float, what: str, fix: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    try:
        done = run_command(argv, timeout_s=limit_s, env={**inherited, "GIT_TERMINAL_PROMPT": "0"})
    except OSError as error:
        raise PlanError(f"cannot {what}: {error}", fix=fix) from error
    if done.code != 0:
        raise PlanError(f"cannot {what}: {done.last_words() or f'exit status {done.code}'}", fix=fix)
    return done.stdout
