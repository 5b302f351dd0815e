"""Build a node's image from the distribution's packages and bring it into the container engine; nothing comes from a registry."""

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

from primus_bootstrap.lab.lab_values import RELEASES, LabError, Say
from primus_bootstrap.lab.program import last_lines, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.lab.apt_settings import AptSettings
    from primus_bootstrap.lab.machine import Machine

_SCRIPT = Path(__file__).parent / "data" / "customize.sh"
# What a fresh server has, and no more: what a role needs beyond this, the role installs.
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
_KEPT_UNUSED_S = 14 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Image:
    """One release's image: `reference` names it in the engine, `archive` is the built file system."""

    suite: str
    reference: str
    archive: Path


def image_for(machine: Machine, suite: str) -> Image:
    """Name the image of a release; the name changes with the recipe, the release and the processor."""
    recipe = "\n".join((suite, platform.machine(), *PACKAGES, _SCRIPT.read_text()))
    key = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    return Image(suite, f"localhost/primus-lab:{suite}-{key}", machine.cache / "images" / f"{suite}-{key}.tar")


def is_imported(machine: Machine, image: Image) -> bool:
    """Return whether the engine holds the image."""
    return run([*machine.engine_argv, "image", "inspect", image.reference], timeout_s=60, check=False).code == 0


def ensure_image(machine: Machine, image: Image, settings: AptSettings, say: Say) -> bool:
    """Build and import what is missing; return whether anything was.

    Raises:
        LabError: The packages could not be fetched or installed.
    """
    if is_imported(machine, image):
        return False
    image.archive.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(image.archive.with_suffix(".lock"), timeout_s=1800, say=say, what=f"the image of {image.suite}"):
        if is_imported(machine, image):
            return False
        if not image.archive.exists():
            _build(machine, image, settings, say)
        say(f"image {_title(image)}: importing into {machine.engine}")
        run([*machine.engine_argv, "import", str(image.archive), image.reference], timeout_s=600)
        _forget_old(machine, image)
    return True


@contextlib.contextmanager
def file_lock(path: Path, *, timeout_s: float, say: Say, what: str) -> Iterator[None]:
    """Hold a lock that the kernel frees when this process ends, however it ends.

    Raises:
        LabError: Another process holds it for longer than `timeout_s`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        deadline = time.monotonic() + timeout_s
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"another process has been working on {what} for {timeout_s:g} s",
                        fix=f"find it with `fuser {path}`, end it, and run this again",
                    ) from None
                if not told:
                    say(f"waiting for another process that works on {what}")
                    told = True
                time.sleep(0.2)
        yield


def _title(image: Image) -> str:
    return f"{RELEASES.get(image.suite, '')} ({image.suite})".strip()


def _build(machine: Machine, image: Image, settings: AptSettings, say: Say) -> None:
    say(f"image {_title(image)}: building from the distribution's packages, about half a minute")
    started = time.monotonic()
    handle, name = tempfile.mkstemp(dir=image.archive.parent, prefix=".", suffix=".part")
    os.close(handle)
    part = Path(name)
    with tempfile.TemporaryDirectory(prefix="primus-lab-") as folder:
        argv = _mmdebstrap(image.suite, settings, Path(folder))
        try:
            finished = run([*machine.sudo, *argv], timeout_s=1800, stdout_file=part, check=False)
            if finished.code:
                raise LabError(
                    f"building the image of {image.suite} failed: {last_lines(finished.err, 12)}",
                    fix=f"check that `apt-get update` works on this machine and that its mirror carries {image.suite}; "
                    "proxies and mirrors of /etc/apt are used as they are",
                )
            part.replace(image.archive)
        finally:
            part.unlink(missing_ok=True)
    say(f"image {_title(image)}: built in {time.monotonic() - started:.0f} s")


def _mmdebstrap(suite: str, settings: AptSettings, folder: Path) -> list[str]:
    """Write what mmdebstrap reads into a folder, and return how to call it; credentials go by file, never by argument."""
    sources = folder / "machine.sources"
    sources.write_text(settings.sources_text(suite))
    options = folder / "apt.conf"
    options.write_text(settings.options_text() or "// nothing of its own\n")
    logins = " ".join(shlex.quote(str(path)) for path in settings.secret_files)
    uploads = [f'--setup-hook=mkdir -p "$1/etc/apt/auth.conf.d" && install -m 0600 {logins} "$1/etc/apt/auth.conf.d/"'] if logins else []
    return [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--format=tar",
        # The script does this itself, so that it can set the date of the empty lists.
        "--skip=cleanup/apt",
        f"--include={','.join(PACKAGES)}",
        f"--aptopt={options}",
        *uploads,
        f'--customize-hook=sh {shlex.quote(str(_SCRIPT))} "$1"',
        suite,
        "-",
        str(sources),
    ]


def _forget_old(machine: Machine, image: Image) -> None:
    """Remove images of earlier recipes: from the engine where no container uses them, archives after two weeks."""
    listed = run([*machine.engine_argv, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], timeout_s=60, check=False).out.split()
    for reference in listed:
        if reference.startswith(image.reference.rpartition("-")[0] + "-") and reference != image.reference:
            run([*machine.engine_argv, "image", "rm", reference], timeout_s=60, check=False)
    for other in image.archive.parent.glob(f"{image.suite}-*.tar"):
        with contextlib.suppress(OSError):
            if other != image.archive and time.time() - other.stat().st_atime > _KEPT_UNUSED_S:
                other.unlink()
