# ruff: noqa: INP001 - Ansible gives it its package: ansible.module_utils
"""Packages, put back: those that a role installed go with what came along for them, those that had to give way come again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ansible.module_utils.origin_record import installed_packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ansible.module_utils.origin_record import Origin
    from ansible.module_utils.reset_host import Host

APT = ["apt-get", "--yes", "--quiet", "-o", "DPkg::Lock::Timeout=300"]
# apt otherwise keeps what a package merely recommends or suggests.
ONLY_NEEDED = ["-o", "APT::AutoRemove::RecommendsImportant=false", "-o", "APT::AutoRemove::SuggestsImportant=false"]
FIX = "see what the package manager says (apt-get -f install, dnf check), then reset again"


def removable_packages(host: Host, origin: Origin, names: Sequence[str]) -> list[str]:
    """Return what goes: a role's packages that were not there before, and what came along for them.

    Those that something else has come to need since stay.
    """
    if not names:
        return []
    here = installed_packages(host)
    if not origin.complete:
        for name in sorted(here & set(names)) if host.diffs else ():
            host.kept(f"package {name}", "it may have been there before the first apply", "remove it by hand if it is not needed")
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
    """Remove packages; with `purge` their configuration too, which is wrong where data lie in a place that a purge would empty."""
    argv = [*APT, "purge" if purge else "remove", *names] if _debian(host) else ["dnf", "--assumeyes", "remove", *names]
    host.do("packages", " ".join(names), "removed", argv, fix=FIX)


def sweep_packages(host: Host, origin: Origin) -> None:
    """Remove what came along for packages of ours, and what apt keeps although nothing needs it any more.

    Of two packages that provide the same thing (awk) apt gives up none by itself. The kernel that runs stays, and so does what came along
    for a package that somebody has installed since, needed or merely recommended.
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


def bring_packages_back(host: Host, origin: Origin, names: Iterable[str]) -> None:
    """Install again what had to give way to a package of ours."""
    missing = sorted(set(names) & origin.packages - installed_packages(host)) if origin.complete and names else []
    if missing:
        argv = [*APT, "--no-install-recommends", "install", *missing] if _debian(host) else ["dnf", "--assumeyes", "install", *missing]
        host.do("packages", "gave way to ours", f"{' '.join(missing)} installed", argv, fix=FIX)


def _recommended(host: Host, by: set[str]) -> set[str]:
    """Return what some packages recommend, alternatives and all."""
    _, output = host.run(["dpkg-query", "--show", "--showformat=${Package}\t${Recommends}\n"]) if by else (0, "")
    listed = dict(line.partition("\t")[::2] for line in output.splitlines())
    return {word for name in by for word in re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", listed.get(name, ""))}


def _running(host: Host) -> str:
    return host.run(["uname", "-r"])[1].strip() or "unknown"


def _debian(host: Host) -> bool:
    return host.at("/usr/bin/apt-get").exists()


def _going(host: Host, origin: Origin, names: Sequence[str], ours: Sequence[str]) -> tuple[set[str], list[str]]:
    """Return what goes with these packages, and which packages of others would have to go too.

    With them goes what was only installed for them, as far as it was not there before. Of others are those that were there before,
    and those that somebody has asked for since.
    """
    going = _would_remove(host, [*ONLY_NEEDED, "--auto-remove", "purge", *names])
    asked_for = set(host.run(["apt-mark", "showmanual"])[1].split()) if going - set(names) else set()
    # What nobody needed already before is listed as well; only a look without it tells whether these packages take it along.
    before = _would_remove(host, ["purge", *names]) & origin.packages if going & origin.packages else set()
    return going - origin.packages, sorted((going & asked_for - set(ours)) | before)


def _would_remove(host: Host, words: list[str]) -> set[str]:
    _, output = host.run([*APT, "--simulate", *words])
    return set(re.findall(r"(?m)^(?:Remv|Purg) (\S+)", output))
