"""Build the image of a node from the distribution's packages and import it into the container engine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shlex
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.lab.commands import run
from primus_bootstrap.lab.lab_values import RELEASES, LabError, Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from primus_bootstrap.lab.apt_settings import AptSettings
    from primus_bootstrap.lab.machine import Machine

SCRIPT = Path(__file__).parent / "data" / "customize.sh"
# The packages of a fresh server only: roles install what they need beyond these.
PACKAGES = (
    "ca-certificates",
    "dbus",
    "iproute2",
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-sysv",
)
_ARCHIVE_MAX_AGE_S = 14 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Image:
    """The image of one release: `reference` is its name in the engine, `archive` the built root file system."""

    suite: str
    reference: str
    archive: Path


def image_for(machine: Machine, suite: str) -> Image:
    """Return the image of a release. Its name depends on the packages, the script, the release and the CPU architecture."""
    recipe = "\n".join((suite, platform.machine(), *PACKAGES, SCRIPT.read_text()))
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return Image(suite, f"localhost/primus-lab:{suite}-{key}", machine.cache / "images" / f"{suite}-{key}.tar")


def is_imported(machine: Machine, image: Image) -> bool:
    """Return whether the engine has the image."""
    return run([*machine.engine_argv, "image", "inspect", image.reference], timeout_s=60, check=False).code == 0


def ensure_image(machine: Machine, image: Image, settings: AptSettings, progress: Progress) -> bool:
    """Build and import the image if the engine does not have it; return whether it was imported.

    Raises:
        LabError: The packages could not be downloaded or installed.
    """
    if is_imported(machine, image):
        return False
    image.archive.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(image.archive.with_suffix(".lock"), timeout_s=1800, progress=progress, what=f"the image of {image.suite}"):
        if is_imported(machine, image):
            return False
        if not image.archive.exists():
            _build(machine, image, settings, progress)
        progress(f"image {_title(image)}: importing into {machine.engine}")
        run([*machine.engine_argv, "import", str(image.archive), image.reference], timeout_s=600)
        _remove_old(machine, image)
    return True


@contextlib.contextmanager
def file_lock(path: Path, *, timeout_s: float, progress: Progress, what: str) -> Iterator[None]:
    """Hold a file lock, which the kernel releases when this process ends.

    Args:
        path: The lock file.
        timeout_s: How long to wait for the lock.
        progress: Reports that another process holds the lock.
        what: What the lock protects, for messages.

    Raises:
        LabError: Another process held the lock for longer than `timeout_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        deadline = time.monotonic() + timeout_s
        reported = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"another process has been working on {what} for {timeout_s:g} s",
                        fix=f"find it with `fuser {path}`, stop it, and run the command again",
                    ) from None
                if not reported:
                    progress(f"waiting for another process that works on {what}")
                    reported = True
                time.sleep(0.2)
        yield


def _title(image: Image) -> str:
    return f"{RELEASES.get(image.suite, '')} ({image.suite})".strip()


def _build(machine: Machine, image: Image, settings: AptSettings, progress: Progress) -> None:
    progress(f"image {_title(image)}: building from the distribution's packages (about 30 s)")
    started = time.monotonic()
    handle, name = tempfile.mkstemp(dir=image.archive.parent, prefix=".", suffix=".part")
    os.close(handle)
    part = Path(name)
    with tempfile.TemporaryDirectory(prefix="primus-lab-") as folder:
        argv = mmdebstrap_argv(image.suite, settings, Path(folder))
        try:
            done = run([*machine.sudo, *argv], timeout_s=1800, stdout_file=part, check=False)
            if done.code:
                raise LabError(
                    f"building the image of {image.suite} failed: {done.last_words(12) or 'no output'}",
                    fix=f"check that `apt-get update` works on this machine and that the mirrors in /etc/apt have {image.suite}",
                )
            part.replace(image.archive)
        finally:
            part.unlink(missing_ok=True)
    progress(f"image {_title(image)}: built in {time.monotonic() - started:.0f} s")


def mmdebstrap_argv(
    suite: str, settings: AptSettings, folder: Path, *, packages: Sequence[str] = PACKAGES, scripts: Sequence[Path] = (SCRIPT,)
) -> list[str]:
    """Write the sources and options of mmdebstrap to a folder and return its command, which prints a tar archive.

    Args:
        suite: The release.
        settings: The apt settings of this machine. Credentials are passed as files only.
        folder: The folder, which must exist until the command has ended.
        packages: The packages to install.
        scripts: The scripts that change the root file system, in this order.
    """
    sources = folder / "machine.sources"
    sources.write_text(settings.sources_text(suite))
    options = folder / "apt.conf"
    options.write_text(settings.options_text() or "// no options\n")
    logins = " ".join(shlex.quote(str(path)) for path in settings.secret_files)
    uploads = [f'--setup-hook=mkdir -p "$1/etc/apt/auth.conf.d" && install -m 0600 {logins} "$1/etc/apt/auth.conf.d/"'] if logins else []
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--format=tar",
        # The customize script does this, to set the date of the empty lists.
        "--skip=cleanup/apt",
        f"--include={','.join(packages)}",
        f"--aptopt={options}",
        *uploads,
        *(f'--customize-hook=sh {shlex.quote(str(script))} "$1"' for script in scripts),
        suite,
        "-",
        str(sources),
    ]


def _remove_old(machine: Machine, image: Image) -> None:
    """Remove outdated images of the same release: from the engine unless a container uses them, and archives after two weeks."""
    listed = run([*machine.engine_argv, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], timeout_s=60, check=False).stdout.split()
    for reference in listed:
        if reference.startswith(image.reference.rpartition("-")[0] + "-") and reference != image.reference:
            run([*machine.engine_argv, "image", "rm", reference], timeout_s=60, check=False)
    for other in image.archive.parent.glob(f"{image.suite}-*.tar"):
        with contextlib.suppress(OSError):
            if other != image.archive and time.time() - other.stat().st_atime > _ARCHIVE_MAX_AGE_S:
                other.unlink()
