"""Resolve packages with their dependencies, and download them, with apt in a separate state folder."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from primus_bootstrap.bundle.artifacts import BundleError, Locked, Target, Unresolved
from primus_bootstrap.bundle.commands import failure, run
from primus_bootstrap.core.atomic_files import write_if_changed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_UPDATE_LIMIT_S = 900.0
_RESOLVE_LIMIT_S = 300.0
_FETCH_LIMIT_S = 3600.0
HELPER = "/usr/lib/apt/apt-helper"
# One line per package, 'URL' FILE SIZE SHA256:SUM: apt-get(8), --print-uris.
_URI = re.compile(r"^'(?P<url>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sum>[0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sources:
    """The package sources of a release: the text of a sources file, its extension, and further lines of apt.conf."""

    text: str
    ending: str = "sources"
    options: str = ""


def resolve(
    target: Target, sets: Iterable[frozenset[str]], sources: Sources, folder: Path
) -> tuple[list[Locked], list[frozenset[str]], list[Unresolved]]:
    """Resolve sets of packages for one target; return the packages to download, the resolved sets, and the failures.

    For apt no package is installed, so that the result is complete for any host.
    """
    settings = _prepare(target, sources, folder)
    updated = run(["apt-get", "--quiet", "update"], timeout_s=_UPDATE_LIMIT_S, environment=settings)
    # The exit code of apt is 0 if a source was not reachable.
    if updated.code or re.search(r"(?m)^(E|W|Err):?", updated.stdout + updated.stderr):
        fix = f"check that this machine can access the sources of {target.release}, or set airgap_apt_sources_file to others"
        return [], [], [Unresolved(f"the packages of {target}", failure(updated), fix)]
    found: dict[str, Locked] = {}
    resolved, failed = [], []
    for names in sets:
        argv = ["apt-get", "--quiet", "--quiet", "--yes", "--no-install-recommends", "--print-uris", "install", *sorted(names)]
        done = run(argv, timeout_s=_RESOLVE_LIMIT_S, environment=settings)
        if done.code:
            fix = "correct the names in hosts.yaml, or add the source with these packages to airgap_apt_sources_file"
            failed.append(Unresolved(f"{', '.join(sorted(names))} for {target}", failure(done), fix))
            continue
        found |= {item.path: item for item in locked_packages(done.stdout, target)}
        resolved.append(names)
    return list(found.values()), resolved, failed


def locked_packages(text: str, target: Target) -> list[Locked]:
    """Parse the output of `apt-get --print-uris`; a file is NAME_VERSION_ARCHITECTURE.deb, quoted as in a URL."""
    found = []
    for match in _URI.finditer(text):
        name, version, architecture = unquote(match["file"]).removesuffix(".deb").split("_")
        path = f"apt/{target}/{name}_{version.replace(':', '%3a')}_{architecture}.deb"
        url, sha256, size = match["url"], match["sum"], int(match["size"])
        found.append(Locked("package", name, version, url=url, sha256=sha256, size_bytes=size, path=path, target=target))
    return found


def fetch(items: Sequence[tuple[Locked, Path]], sources: Sources, folder: Path) -> dict[str, str]:
    """Download packages with apt's transports, each to its path; return the failures by path in the bundle."""
    if not items:
        return {}
    target = items[0][0].target
    settings = _prepare(target or Target("", ""), sources, folder)
    arguments = [word for item, part in items for word in (item.url, str(part), f"SHA256:{item.sha256}")]
    done = run([HELPER, "download-file", *arguments], timeout_s=_FETCH_LIMIT_S, environment=settings)
    for part in (part for _, part in items if part.is_symlink()):
        # apt creates links for a source on this machine's disk.
        content = part.resolve().read_bytes()
        part.unlink()
        part.write_bytes(content)
    return {item.path: failure(done) or "apt wrote no file" for item, part in items if not part.is_file()}


def _prepare(target: Target, sources: Sources, folder: Path) -> dict[str, str]:
    """Write apt's configuration and an empty state below a folder; return the environment variables that select it."""
    root = folder / str(target)
    for name in ("lists/partial", "archives/partial", "etc/preferences.d", "etc/apt.conf.d", "etc/sources.d"):
        (root / name).mkdir(parents=True, exist_ok=True)
    # An empty status file: no package is installed.
    write_if_changed(root / "status", "", mode=0o644)
    write_if_changed(root / f"etc/bundle.{sources.ending}", sources.text, mode=0o644)
    lines = [
        f'Dir::State "{root}";',
        f'Dir::State::lists "{root}/lists";',
        f'Dir::State::status "{root}/status";',
        f'Dir::Cache "{root}";',
        f'Dir::Cache::archives "{root}/archives";',
        f'Dir::Etc "{root}/etc";',
        f'Dir::Etc::main "{root}/etc/none";',
        f'Dir::Etc::parts "{root}/etc/apt.conf.d";',
        f'Dir::Etc::sourcelist "{root}/etc/bundle.{sources.ending}";',
        f'Dir::Etc::sourceparts "{root}/etc/sources.d";',
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
    write_if_changed(root / "apt.conf", text, mode=0o644)
    if '"' in str(folder):
        raise BundleError(
            f"apt does not support the quotation mark in {shlex.quote(str(folder))}", fix="set XDG_CACHE_HOME to another folder"
        )
    return {"APT_CONFIG": str(root / "apt.conf"), "DEBIAN_FRONTEND": "noninteractive"}
