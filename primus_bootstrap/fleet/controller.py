"""Check this machine's requirements for a controller, for the verb `doctor`, without contacting a host."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from primus_bootstrap import content
from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The collections whose modules the roles use, from the PyPI package `ansible`.
COLLECTIONS = ("ansible.posix", "community.general", "kubernetes.core")
# The first version with `StrictHostKeyChecking=accept-new`: https://www.openssh.com/txt/release-7.6
MIN_SSH = (7, 6)
# For runs, artifacts, and a checkout of Kubespray with its Python environment (0.6 GiB).
MIN_DISK_GIB = 2.0
# For 20 forks of Ansible, about 50 MiB each (measured with ansible-core 2.19), and the programs that they run.
MIN_MEMORY_GIB = 2.0
# For 20 forks, and 200 hosts of a fan-out at the same time.
MIN_FILES = 1024
OPTIONAL = {
    "podman": "required for the lab (primus-bootstrap lab up)",
    "mmdebstrap": "required to build the image of the lab",
    "git": "required to check out Kubespray",
}
_TIMEOUT_S = 20


def check_controller(folder: Path) -> Iterator[Verdict]:
    """Yield a verdict for each requirement; `folder` is the folder for runs."""
    for check in (_python, _packages, _collections, _ssh, _locale, _files_limit, _memory_and_clock, _programs):
        yield from _timed(check)
    yield from _timed(lambda: _disk(folder))
    yield from _timed(_home)


def _timed(check: Callable[[], Iterator[Verdict]]) -> Iterator[Verdict]:
    started = time.time()
    for verdict in check():
        yield replace(verdict, started=started, seconds=round(time.time() - started, 3))


def _verdict(  # noqa: PLR0913 (the fields of a record)
    check: str,
    passed: bool | None,  # noqa: FBT001
    expected: str,
    found: str,
    *,
    reason: str,
    fix: str,
    unit: str = "",
    device: str = "",
) -> Verdict:
    """Return a record; a pass has neither reason nor fix."""
    outcome: Outcome = "unknown" if passed is None else "pass" if passed else "fail"
    if passed:
        reason = fix = ""
    return Verdict(check, platform.node(), outcome, expected, found, unit=unit, reason=reason, fix=fix, device=device)


def _output(*command: str) -> str:
    """Return a program's stdout and stderr, or an empty string if it is missing or does not end."""
    try:
        done = run_command(command, timeout_s=_TIMEOUT_S)
    except OSError:
        return ""
    return (done.stdout + done.stderr).strip()


def _python() -> Iterator[Verdict]:
    found = platform.python_version()
    reason = f"Python {found} is too old"
    yield _verdict(
        "python",
        sys.version_info >= (3, 11),
        ">= 3.11",
        found,
        reason=reason,
        fix="install Python 3.11 or newer and install primus-bootstrap with it",
    )


def _packages() -> Iterator[Verdict]:
    """Compare the requirements of the installed package with the installed versions."""
    for text in importlib.metadata.requires("primus-bootstrap") or ():
        package = Requirement(text)
        if package.marker and not package.marker.evaluate({"extra": ""}):
            continue
        try:
            found = importlib.metadata.version(package.name)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        passed = found != "not installed" and package.specifier.contains(found, prereleases=True)
        fix = f"{sys.executable} -m pip install {str(package)!r}"
        reason = f"{package.name} is {found}"
        yield _verdict(f"package {package.name}", passed, str(package.specifier) or "any", found, reason=reason, fix=fix)


def _collections() -> Iterator[Verdict]:
    for name in COLLECTIONS:
        try:
            passed = importlib.util.find_spec(f"ansible_collections.{name}") is not None
        except ModuleNotFoundError:
            passed = False
        found, fix = "importable" if passed else "missing", f"{sys.executable} -m pip install ansible"
        yield _verdict(f"collection {name}", passed, "importable", found, reason=f"{name} is missing", fix=fix)


def _ssh() -> Iterator[Verdict]:
    output = _output("ssh", "-V")
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", output)
    passed = match is not None and (int(match[1]), int(match[2])) >= MIN_SSH
    reason = "ssh is not OpenSSH, or too old" if output else "ssh is not installed"
    yield _verdict("ssh", passed, "OpenSSH >= 7.6", output.partition(",")[0] or "missing", reason=reason, fix="install openssh-client")


def _locale() -> Iterator[Verdict]:
    """Check the encoding of the locale like Ansible, which does not start without UTF-8."""
    found = _output(sys.executable, "-c", "import locale; locale.setlocale(locale.LC_ALL, ''); print(locale.getlocale()[1])")
    found = found.rpartition("\n")[2]
    passed = found.lower().replace("-", "") == "utf8"
    yield _verdict("locale", passed, "UTF-8", found, reason="Ansible does not start with this locale", fix="export LC_ALL=C.UTF-8")


def _files_limit() -> Iterator[Verdict]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    passed = hard == resource.RLIM_INFINITY or hard >= MIN_FILES
    reason, fix = "the limit of open files is too low", "raise the hard limit: nofile in /etc/security/limits.conf, then log in again"
    yield _verdict(
        "open files", passed, f">= {MIN_FILES}", "unlimited" if hard == resource.RLIM_INFINITY else str(hard), reason=reason, fix=fix
    )


def _memory_and_clock() -> Iterator[Verdict]:
    """Check memory and clock with the script that probes hosts."""
    facts = _probe_this_machine()
    free = facts.get("memory", {}).get("available_gib")
    passed = None if free is None else free >= MIN_MEMORY_GIB
    reason, fix = "too little free memory for 20 forks", "free memory, or use fewer forks (ANSIBLE_FORKS)"
    yield _verdict("memory", passed, f">= {MIN_MEMORY_GIB:g}", str(free or ""), unit="GiB", reason=reason, fix=fix)
    synchronised = facts.get("clock", {}).get("synchronised")
    # Without a time service the clock may still be correct: the verdict is unknown, not fail.
    reason = "no time service runs, and preflight compares every host's clock with this one"
    found = "synchronised" if synchronised else "unknown"
    yield _verdict("clock", synchronised or None, "synchronised", found, reason=reason, fix="install and start chrony")


def _probe_this_machine() -> dict[str, Any]:
    script = content.roles_dir() / "preflight/files/probe_host.py"
    try:
        facts: dict[str, Any] = json.loads(_output(sys.executable, "-I", "-S", str(script)) or "{}").get("facts", {})
    except ValueError:
        return {}
    return facts


def _programs() -> Iterator[Verdict]:
    for name, why in OPTIONAL.items():
        yield _optional(name, shutil.which(name), why)
    runtime = shutil.which("crun") or shutil.which("runc")
    yield _optional("crun or runc", runtime, "required for the containers of the lab")


def _optional(name: str, path: str | None, why: str) -> Verdict:
    """Return a pass, or `skipped` with the feature that needs the program."""
    if path:
        return Verdict(check=name, host=platform.node(), verdict="pass", expected="installed", found=path)
    reason = f"not installed: {why}"
    return Verdict(check=name, host=platform.node(), verdict="skipped", expected="installed", found="missing", reason=reason)


def _disk(folder: Path) -> Iterator[Verdict]:
    free = round(shutil.disk_usage(folder).free / 2**30, 1)
    reason, fix = f"{folder} has too little free space for runs", "free some space, or set PRIMUS_STATE_DIR to another folder"
    yield _verdict("disk", free >= MIN_DISK_GIB, f">= {MIN_DISK_GIB:g}", str(free), unit="GiB", device=str(folder), reason=reason, fix=fix)


def _home() -> Iterator[Verdict]:
    """Check that the home folder is writable: Ansible stores sockets below ~/.ansible."""
    home = Path.home()
    reason, fix = f"{home} is not writable, and Ansible stores its sockets there", "make it writable, or set HOME to a writable folder"
    yield _verdict("home", os.access(home, os.W_OK), "writable", str(home), reason=reason, fix=fix)
