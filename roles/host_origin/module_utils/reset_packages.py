# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Remove packages of a role and their dependencies, and install packages again that they replaced."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ansible.module_utils.origin_record import installed_packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ansible.module_utils.origin_record import Origin
    from ansible.module_utils.reset_host import Host

APT = ["apt-get", "--yes", "--quiet", "-o", "DPkg::Lock::Timeout=300"]
# By default apt keeps packages that another one only recommends or suggests.
ONLY_NEEDED = ["-o", "APT::AutoRemove::RecommendsImportant=false", "-o", "APT::AutoRemove::SuggestsImportant=false"]
FIX = "correct the error of the package manager (apt-get -f install, dnf check), then reset again"


def removable_packages(host: Host, origin: Origin, names: Sequence[str]) -> list[str]:
    """Return the packages to remove: those of the role that are new, and their dependencies.

    Packages that another package needs since then stay.
    """
    if not names:
        return []
    here = installed_packages(host)
    if not origin.complete:
        for name in sorted(here & set(names)) if host.diffs else ():
            host.kept(f"package {name}", "it may have existed before the first apply", "remove it by hand if it is not needed")
        return []
    ours = sorted(here & set(names) - origin.packages)
    if not ours or not _debian(host):
        return ours
    going, others = _going(host, origin, ours, names)
    if not others:
        return sorted({*ours, *going})
    needed = {name: _going(host, origin, [name], names)[1] for name in ours}
    for name, by in needed.items():
        if by:
            host.kept(f"package {name}", f"needed by {', '.join(by[:5])}", "remove that one, then reset again")
    free = [name for name, by in needed.items() if not by]
    return sorted({*free, *_going(host, origin, free, names)[0]}) if free else []


def remove_packages(host: Host, names: Sequence[str], *, purge: bool) -> None:
    """Remove packages; with `purge` their configuration too. A purge can delete data folders, so the caller decides."""
    argv = [*APT, "purge" if purge else "remove", *names] if _debian(host) else ["dnf", "--assumeyes", "remove", *names]
    host.run_change("packages", " ".join(names), "removed", argv, fix=FIX)


def remove_leftover_packages(host: Host, origin: Origin) -> None:
    """Remove new packages that were installed as dependencies and that nothing needs any more.

    If two packages provide the same thing (awk), apt removes neither by itself. The running kernel stays, and so do packages that a package
    of the administrator needs or recommends.
    """
    if not origin.complete or not _debian(host):
        return
    here = installed_packages(host)
    extra = (here - origin.packages) & set(host.run(["apt-mark", "showauto"])[1].split())
    extra = {name for name in extra - _recommended(host, here - origin.packages - extra) if not name.endswith(f"-{_running(host)}")}
    if extra and _would_remove(host, ["purge", *sorted(extra)]) - extra:
        extra = {name for name in extra if not _would_remove(host, ["purge", name]) - extra}
    if extra:
        remove_packages(host, sorted(extra), purge=True)


def reinstall_packages(host: Host, origin: Origin, names: Iterable[str]) -> None:
    """Install packages again that packages of a role replaced."""
    missing = sorted(set(names) & origin.packages - installed_packages(host)) if origin.complete and names else []
    if missing:
        argv = [*APT, "--no-install-recommends", "install", *missing] if _debian(host) else ["dnf", "--assumeyes", "install", *missing]
        host.run_change("packages", "removed by packages of a role", f"{' '.join(missing)} installed", argv, fix=FIX)


def _recommended(host: Host, by: set[str]) -> set[str]:
    """Return what these packages recommend, with all alternatives."""
    _, output = host.run(["dpkg-query", "--show", "--showformat=${Package}\t${Recommends}\n"]) if by else (0, "")
    listed = dict(line.partition("\t")[::2] for line in output.splitlines())
    return {word for name in by for word in re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", listed.get(name, ""))}


def _running(host: Host) -> str:
    return host.run(["uname", "-r"])[1].strip() or "unknown"


def _debian(host: Host) -> bool:
    return host.at("/usr/bin/apt-get").exists()


def _going(host: Host, origin: Origin, names: Sequence[str], ours: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return the packages that are removed together with these, and packages of others that would be removed too.

    The first are new packages that were installed only as dependencies. Packages of others existed before, or were installed by hand since.
    """
    going = _would_remove(host, [*ONLY_NEEDED, "--auto-remove", "purge", *names])
    manual = set(host.run(["apt-mark", "showmanual"])[1].split()) if going - set(names) else set()
    # The list includes packages that were already unneeded before. A run without --auto-remove excludes them.
    before = _would_remove(host, ["purge", *names]) & origin.packages if going & origin.packages else set()
    return going - origin.packages, sorted((going & manual - set(ours)) | before)


def _would_remove(host: Host, words: list[str]) -> set[str]:
    _, output = host.run([*APT, "--simulate", *words])
    return set(re.findall(r"(?m)^(?:Remv|Purg) (\S+)", output))
