"""Whether this machine can be a controller: what `doctor` checks, as verdict records. Contacts no host."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from primus_bootstrap import content
from primus_bootstrap.core.commands import run_command
from primus_bootstrap.core.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# From the PyPI package `ansible`; the roles name modules of these.
COLLECTIONS = ("ansible.posix", "community.general", "kubernetes.core")
# `StrictHostKeyChecking=accept-new` is of 7.6: https://www.openssh.com/txt/release-7.6
MIN_SSH = (7, 6)
# Runs, artifacts, and a checkout of Kubespray with its own environment (0.6 GiB).
MIN_DISK_GIB = 2.0
# Twenty forks of Ansible, some 50 MiB each as measured with ansible-core 2.19, and as much again for what they run.
MIN_MEMORY_GIB = 2.0
# Twenty forks and 200 hosts of a fan-out at once.
MIN_FILES = 1024
OPTIONAL = {
    "podman": "the lab (primus-bootstrap lab up) runs its hosts with it",
    "mmdebstrap": "the lab builds its image with it",
    "git": "Kubespray is checked out with it",
}
_TIMEOUT_S = 20


def check_controller(folder: Path) -> Iterator[Verdict]:
    """Yield a verdict for everything that a controller needs; `folder` is where runs will be kept."""
    for check in (_python, _packages, _collections, _ssh, _locale, _files_limit, _memory_and_clock, _programs):
        yield from _timed(check)
    yield from _timed(lambda: _disk(folder))
    yield from _timed(_home)


def _timed(check: Callable[[], Iterator[Verdict]]) -> Iterator[Verdict]:
    started = time.time()
    for verdict in check():
        yield Verdict(**{**verdict.to_json(), "started": started, "seconds": round(time.time() - started, 3)})


def _say(  # noqa: PLR0913 (the fields of a record)
    check: str,
    right: bool | None,  # noqa: FBT001
    expected: str,
    found: str,
    *,
    reason: str,
    fix: str,
    unit: str = "",
    device: str = "",
) -> Verdict:
    """Return a record; a pass has neither reason nor fix."""
    word: Outcome = "unknown" if right is None else "pass" if right else "fail"
    if right:
        reason = fix = ""
    return Verdict(check, platform.node(), word, expected, found, unit=unit, reason=reason, fix=fix, device=device)


def _output(*command: str) -> str:
    """Return what a program prints, on either stream; empty where it is missing or hangs."""
    try:
        done = run_command(command, timeout_s=_TIMEOUT_S)
    except OSError:
        return ""
    return (done.stdout + done.stderr).strip()


def _python() -> Iterator[Verdict]:
    found = platform.python_version()
    reason = f"Python {found} is too old"
    yield _say(
        "python", sys.version_info >= (3, 11), ">= 3.11", found, reason=reason, fix="install Python 3.11 or newer and reinstall there"
    )


def _packages() -> Iterator[Verdict]:
    """Compare what the installed package asks for with what is there."""
    for text in importlib.metadata.requires("primus-bootstrap") or ():
        wanted = Requirement(text)
        if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            found = "not installed"
        right = found != "not installed" and wanted.specifier.contains(found, prereleases=True)
        fix = f"{sys.executable} -m pip install {str(wanted)!r}"
        yield _say(f"package {wanted.name}", right, str(wanted.specifier) or "any", found, reason=f"{wanted.name} is {found}", fix=fix)


def _collections() -> Iterator[Verdict]:
    for name in COLLECTIONS:
        try:
            here = importlib.util.find_spec(f"ansible_collections.{name}") is not None
        except ModuleNotFoundError:
            here = False
        fix = f"{sys.executable} -m pip install ansible (the package that carries the collections)"
        yield _say(f"collection {name}", here, "importable", "importable" if here else "missing", reason=f"{name} is missing", fix=fix)


def _ssh() -> Iterator[Verdict]:
    words = _output("ssh", "-V")
    match = re.search(r"OpenSSH_(\d+)\.(\d+)", words)
    right = match is not None and (int(match[1]), int(match[2])) >= MIN_SSH
    reason = "ssh is not OpenSSH, or too old" if words else "there is no ssh"
    yield _say("ssh", right, "OpenSSH >= 7.6", words.partition(",")[0] or "missing", reason=reason, fix="install openssh-client")


def _locale() -> Iterator[Verdict]:
    """Ask as Ansible does: it ends at once where the locale's encoding is not UTF-8."""
    found = _output(sys.executable, "-c", "import locale; locale.setlocale(locale.LC_ALL, ''); print(locale.getlocale()[1])")
    found = found.rpartition("\n")[2]
    right = found.lower().replace("-", "") == "utf8"
    yield _say("locale", right, "UTF-8", found, reason="Ansible refuses to start in this locale", fix="export LC_ALL=C.UTF-8")


def _files_limit() -> Iterator[Verdict]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    right = hard == resource.RLIM_INFINITY or hard >= MIN_FILES
    reason, fix = "too few files may be open at once", "raise the hard limit: nofile in /etc/security/limits.conf, then log in again"
    yield _say("open files", right, f">= {MIN_FILES}", "unlimited" if hard == resource.RLIM_INFINITY else str(hard), reason=reason, fix=fix)


def _memory_and_clock() -> Iterator[Verdict]:
    """Read this machine with the script that reads the hosts."""
    facts = _own_facts()
    free = facts.get("memory", {}).get("available_gib")
    right = None if free is None else free >= MIN_MEMORY_GIB
    reason, fix = "too little free memory for 20 forks", "free memory, or run fewer forks (ANSIBLE_FORKS)"
    yield _say("memory", right, f">= {MIN_MEMORY_GIB:g}", str(free or ""), unit="GiB", reason=reason, fix=fix)
    kept = facts.get("clock", {}).get("synchronised")
    # A clock that nothing keeps may be right all the same: that it is not known is the truth.
    reason = "no time service keeps this clock, and preflight compares every host's clock with it"
    yield _say("clock", kept or None, "synchronised", "synchronised" if kept else "not known to be", reason=reason, fix="start chrony")


def _own_facts() -> dict[str, Any]:
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
    yield _optional("crun or runc", runtime, "the lab's containers run under one of them")


def _optional(name: str, path: str | None, why: str) -> Verdict:
    """Return a pass, or say what cannot be done without; nothing fails for it."""
    if path:
        return Verdict(check=name, host=platform.node(), verdict="pass", expected="installed", found=path)
    reason = f"not installed: {why}"
    return Verdict(check=name, host=platform.node(), verdict="skipped", expected="installed", found="missing", reason=reason)


def _disk(folder: Path) -> Iterator[Verdict]:
    free = round(shutil.disk_usage(folder).free / 2**30, 1)
    reason, fix = f"{folder} has too little room for runs", "free some, or set PRIMUS_STATE_DIR to a folder elsewhere"
    yield _say("disk", free >= MIN_DISK_GIB, f">= {MIN_DISK_GIB:g}", str(free), unit="GiB", device=str(folder), reason=reason, fix=fix)


def _home() -> Iterator[Verdict]:
    """Ansible keeps its connections' sockets below ~/.ansible."""
    home = Path.home()
    reason, fix = f"{home} cannot be written, and Ansible keeps its sockets there", "make it writable, or set HOME to a folder that is"
    yield _say("home", os.access(home, os.W_OK), "writable", str(home), reason=reason, fix=fix)
