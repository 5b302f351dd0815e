"""Packages and all that they depend on, resolved by apt itself in a state folder of its own: the only module that speaks to apt."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from primus_bootstrap.bundle.artifacts import BundleError, Locked, Target, Unresolved
from primus_bootstrap.bundle.program import run, why
from primus_bootstrap.core.atomic_files import write_if_changed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_UPDATE_LIMIT_S = 900.0
_RESOLVE_LIMIT_S = 300.0
_FETCH_LIMIT_S = 3600.0
HELPER = "/usr/lib/apt/apt-helper"
# 'URL' FILE SIZE SHA256:SUM, a line for each package: apt-get(8), --print-uris.
_URI = re.compile(r"^'(?P<url>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sum>[0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sources:
    """Where packages of a release come from: the text of a sources file, its ending, and lines of apt.conf that reach them."""

    text: str
    ending: str = "sources"
    options: str = ""


def resolve(
    target: Target, sets: Iterable[frozenset[str]], sources: Sources, folder: Path
) -> tuple[list[Locked], list[frozenset[str]], list[Unresolved]]:
    """Resolve sets of packages for one kind of host; return what is to be fetched, which sets that covers, and what failed.

    apt sees no package as installed, so that what it names is complete, whatever a host has.
    """
    settings = _prepare(target, sources, folder)
    updated = run(["apt-get", "--quiet", "update"], timeout_s=_UPDATE_LIMIT_S, environment=settings)
    # apt ends with 0 where a source only could not be reached, and would go on with what it had.
    if updated.code or re.search(r"(?m)^(E|W|Err):?", updated.stdout + updated.stderr):
        fix = f"see that this machine reaches the sources of {target.release}, or name others in airgap_apt_sources_file"
        return [], [], [Unresolved(f"the packages of {target}", why(updated), fix)]
    found: dict[str, Locked] = {}
    covered, failed = [], []
    for names in sets:
        argv = ["apt-get", "--quiet", "--quiet", "--yes", "--no-install-recommends", "--print-uris", "install", *sorted(names)]
        done = run(argv, timeout_s=_RESOLVE_LIMIT_S, environment=settings)
        if done.code:
            fix = "mend the names in hosts.yaml, or add the source that carries them: airgap_apt_sources_file"
            failed.append(Unresolved(f"{', '.join(sorted(names))} for {target}", why(done), fix))
            continue
        found |= {item.path: item for item in locked_packages(done.stdout, target)}
        covered.append(names)
    return list(found.values()), covered, failed


def locked_packages(text: str, target: Target) -> list[Locked]:
    """Read what `apt-get --print-uris` says; the file's name is NAME_VERSION_ARCHITECTURE.deb, quoted as in a URL."""
    found = []
    for match in _URI.finditer(text):
        name, version, architecture = unquote(match["file"]).removesuffix(".deb").split("_")
        path = f"apt/{target}/{name}_{version.replace(':', '%3a')}_{architecture}.deb"
        url, sha256, size = match["url"], match["sum"], int(match["size"])
        found.append(Locked("package", name, version, url=url, sha256=sha256, size_bytes=size, path=path, target=target))
    return found


def fetch(items: Sequence[tuple[Locked, Path]], sources: Sources, folder: Path) -> dict[str, str]:
    """Download packages with apt's own transports, each to the path given; return what failed, by path in the bundle."""
    if not items:
        return {}
    target = items[0][0].target
    settings = _prepare(target or Target("", ""), sources, folder)
    words = [word for item, part in items for word in (item.url, str(part), f"SHA256:{item.sha256}")]
    done = run([HELPER, "download-file", *words], timeout_s=_FETCH_LIMIT_S, environment=settings)
    for part in (part for _, part in items if part.is_symlink()):
        # Of a source on this machine's own disk apt only makes links.
        content = part.resolve().read_bytes()
        part.unlink()
        part.write_bytes(content)
    return {item.path: why(done) or "apt wrote no file" for item, part in items if not part.is_file()}


def _prepare(target: Target, sources: Sources, folder: Path) -> dict[str, str]:
    """Write apt's own little world below a folder; return the environment that makes apt live in it."""
    place = folder / str(target)
    for name in ("lists/partial", "archives/partial", "etc/preferences.d", "etc/apt.conf.d", "etc/sources.d"):
        (place / name).mkdir(parents=True, exist_ok=True)
    # Nothing is installed: what apt then names is all that a package needs.
    write_if_changed(place / "status", "", mode=0o644)
    write_if_changed(place / f"etc/bundle.{sources.ending}", sources.text, mode=0o644)
    lines = [
        f'Dir::State "{place}";',
        f'Dir::State::lists "{place}/lists";',
        f'Dir::State::status "{place}/status";',
        f'Dir::Cache "{place}";',
        f'Dir::Cache::archives "{place}/archives";',
        f'Dir::Etc "{place}/etc";',
        f'Dir::Etc::main "{place}/etc/none";',
        f'Dir::Etc::parts "{place}/etc/apt.conf.d";',
        f'Dir::Etc::sourcelist "{place}/etc/bundle.{sources.ending}";',
        f'Dir::Etc::sourceparts "{place}/etc/sources.d";',
        'Dir::Etc::netrc "/etc/apt/auth.conf";',
        'Dir::Etc::netrcparts "/etc/apt/auth.conf.d";',
        'Dir::Etc::trusted "/etc/apt/trusted.gpg";',
        'Dir::Etc::trustedparts "/etc/apt/trusted.gpg.d";',
        f'APT::Architecture "{target.architecture}";' if target.architecture else "",
        f'APT::Architectures {{ "{target.architecture}"; }};' if target.architecture else "",
        'Acquire::ForceHash "SHA256";',
        'Acquire::Languages "none";',
        'Acquire::Retries "3";',
        'APT::Sandbox::User "";',
        sources.options,
    ]
    text = "".join(f"{line}\n" for line in lines if line)
    write_if_changed(place / "apt.conf", text, mode=0o644)
    if '"' in str(folder):
        raise BundleError(f"apt cannot work in {shlex.quote(str(folder))}", fix="choose another cache folder: XDG_CACHE_HOME")
    return {"APT_CONFIG": str(place / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
