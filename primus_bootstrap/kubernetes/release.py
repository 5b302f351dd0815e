"""Install a release of Kubespray in the user's cache, unmodified and with its own Python environment.

The source is a folder (`PRIMUS_KUBESPRAY_DIR`), an archive on the controller or in the bundle, or git. The commit of a checkout and the
sha256 and content of an archive are checked. With a bundle, nothing is downloaded.
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
from primus_bootstrap.kubernetes.git_tree import tree_of_archive
from primus_bootstrap.kubernetes.source import KubespraySource, from_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


FOLDER_VARIABLE = "PRIMUS_KUBESPRAY_DIR"
_FETCH_S, _INSTALL_S = 900, 1800
_READY = ".primus-ready"
_METADATA = "galaxy.yml"


@dataclass(frozen=True, slots=True)
class PreparedRelease:
    """An installed release: `checkout` is its folder, `programs` the folder of its `ansible-playbook`."""

    checkout: Path
    programs: Path


def cache_folder() -> Path:
    """Return the cache folder of releases, which all clusters share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "primus-bootstrap" / "kubespray"


def prepare_release(source: KubespraySource, *, cache: Path | None = None) -> PreparedRelease:
    """Return the release, downloaded and installed if necessary. After an interruption the next call completes it.

    Raises:
        PlanError: The release is not available, or its content is not that of the commit.
    """
    release, cache = load_release(source.release), cache or cache_folder()
    given = source.folder or os.environ.get(FOLDER_VARIABLE, "")
    source = from_bundle(replace(source, folder=given)) if source.bundle else source
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(cache / "lock"):
        checkout = _given(Path(given), release) if given else _fetched(source, release, cache)
        return PreparedRelease(checkout, _environment(source, release, cache) / "bin")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Allow one process at a time to change the cache."""
    with path.open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _given(folder: Path, release: Release) -> Path:
    """Return the user's folder if its version, and for a checkout its commit, is the pinned one."""
    metadata = folder.expanduser().absolute() / _METADATA
    version = re.search(r"^version: *(\S+)", metadata.read_text(encoding="utf-8"), re.MULTILINE) if metadata.is_file() else None
    if version is None or version[1] != release.number:
        content = f"contains Kubespray v{version[1]}" if version else "is not a checkout of Kubespray"
        what = f"{folder} {content}; kubespray_release is {release.version}"
        raise PlanError(what, fix=f"check out {release.tag or release.commit} there, or unset {FOLDER_VARIABLE}")
    if (metadata.parent / ".git").exists():
        _refuse_changed(metadata.parent, release)
    return metadata.parent


def _refuse_changed(folder: Path, release: Release) -> None:
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    other = f"use another folder (kubespray_folder, {FOLDER_VARIABLE}), or none to download the release"
    fix = f"make {folder} readable for git, or {other}"
    found = _call([*git, "rev-parse", "HEAD"], 60, "read Kubespray's commit", fix).strip()
    if found != release.commit:
        what = f"{folder} is at commit {found}, but Kubespray {release.version} is {release.commit}"
        raise PlanError(what, fix=f"git -C {folder} checkout {release.tag or release.commit}, or {other}")
    changed = _call([*git, "status", "--porcelain"], 60, "check Kubespray for changes", fix).splitlines()
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        what = f"{folder} was changed since the release {release.version}: {changed[0].strip()}{more}"
        raise PlanError(what, fix=f"undo the changes (git -C {folder} status), or {other}; settings belong in hosts.yaml")


def _fetched(source: KubespraySource, release: Release, cache: Path) -> Path:
    target = cache / (f"archive-{source.sha256[:12]}" if source.archive else release.version)
    if (target / _READY).is_file():
        return target
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as draft:
        found = _unpacked(source, Path(draft), release) if source.archive else _cloned(source, Path(draft), release)
        (found / _READY).touch()
        shutil.rmtree(target, ignore_errors=True)
        found.rename(target)
    return target


def _unpacked(source: KubespraySource, draft: Path, release: Release) -> Path:
    archive = Path(source.archive).expanduser()
    if not archive.is_file():
        raise PlanError(f"the archive of Kubespray {archive} does not exist", fix="correct kubespray_archive, or remove it to use git")
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        what = f"{archive} has the sha256 {found}, expected {source.sha256 or '(kubespray_archive_sha256 is not set)'}"
        raise PlanError(what, fix=f"download the archive of {release.version} again, or set the sum that you trust")
    if fault := archive_fault(archive, release):
        raise PlanError(f"{archive} {fault}", fix=f"download the archive of {release.version} again; a changed release is not supported")
    with tarfile.open(archive) as packed:
        packed.extractall(draft, filter="data")
    return _given(next(draft.glob(f"*/{_METADATA}"), draft / _METADATA).parent, release)


def archive_fault(archive: Path, release: Release) -> str:
    """Return why the content of an archive is not the release, or an empty string."""
    try:
        found = tree_of_archive(archive)
    except ValueError as error:
        return f"is not an archive of a release: {error}"
    what = f"differs from Kubespray {release.version}: its tree is {found}, that of commit {release.commit} is {release.tree}"
    return "" if found == release.tree else what


def _cloned(source: KubespraySource, draft: Path, release: Release) -> Path:
    checkout = draft / "kubespray"
    url = source.url or release.url
    fix = f"check that the controller can access {url}, or provide the release as a folder ({FOLDER_VARIABLE}) or archive"
    for argv in _clone_commands(release, url, str(checkout)):
        _call(argv, _FETCH_S, "download Kubespray", fix)
    found = _call(["git", "-C", str(checkout), "rev-parse", "HEAD"], 60, "read Kubespray's commit", fix).strip()
    if found != release.commit:
        what = f"{release.version} at {url} is commit {found}, expected {release.commit}: the tag was moved"
        raise PlanError(what, fix="find out why the tag was moved before you use it; a mirror must have the original tag")
    return checkout


def _clone_commands(release: Release, url: str, checkout: str) -> tuple[list[str], ...]:
    """Return the commands that download a release without its history: its tag, or the commit if it has none."""
    if release.tag:
        return (["git", "clone", "-q", "--depth", "1", "--branch", release.tag, url, checkout],)
    git = ["git", "-C", checkout]
    return (
        ["git", "init", "-q", checkout],
        [*git, "fetch", "-q", "--depth", "1", url, release.commit],
        [*git, "checkout", "-q", "--detach", "FETCH_HEAD"],
    )


def environment_folder(release: Release, cache: Path) -> Path:
    """Return the folder of the virtual environment for the release and this Python."""
    key = "\n".join((sys.version, *release.requirements))
    return cache / f"venv-{hashlib.sha256(key.encode()).hexdigest()[:12]}"


def _environment(source: KubespraySource, release: Release, cache: Path) -> Path:
    """Return a virtual environment with the requirements of the release."""
    target = environment_folder(release, cache)
    if (target / _READY).is_file():
        return target
    shutil.rmtree(target, ignore_errors=True)  # a virtual environment contains its own path, so it cannot be built elsewhere and renamed
    fix = "check that pip can access a package index, or set kubespray_packages to a folder with wheels of " + ", ".join(
        release.requirements
    )
    _call([sys.executable, "-m", "venv", str(target)], _INSTALL_S, "create an environment for Kubespray's Ansible", "install python3-venv")
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
        raise PlanError(f"cannot {what}: {done.last_words() or f'exit code {done.code}'}", fix=fix)
    return done.stdout
