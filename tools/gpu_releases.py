#!/usr/bin/env python3
"""Compare roles/gpu_driver/files/releases.yml with the vendors' package repositories, and add new releases of known series.

    .venv/bin/python tools/gpu_releases.py            # prints what is new
    .venv/bin/python tools/gpu_releases.py --write    # also adds the new releases of AMD's known series

A release is added only if its ROCm folder and its driver folder exist, and the driver's package index has a package with the module of the
series. New series and branches are printed only: a person reads in the vendor's support table what they run on. Nothing is removed.
"""

from __future__ import annotations

import argparse
import gzip
import re
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Fetch = Callable[[str], "str | None"]

LIST = Path(__file__).resolve().parents[1] / "roles" / "gpu_driver" / "files" / "releases.yml"
TIMEOUT_S = 60
# Both vendors have the same releases for every distribution. These are the ones whose index is read.
AMD_SUITE, NVIDIA_SYSTEM = "jammy", "ubuntu2204/x86_64"


@dataclass(frozen=True)
class Release:
    """A release of ROCm with its driver."""

    series: str
    name: str
    driver: str
    rocm: str
    build: str

    @property
    def line(self) -> str:
        """The entry in releases.yml."""
        driver, rocm = (f'"{folder}"' if folder.count(".") == 1 else folder for folder in (self.driver, self.rocm))
        return f'        {self.name}: {{driver: {driver}, rocm: {rocm}, build: "{self.build}"}}'


def download(url: str) -> bytes | None:
    """Return the content of a URL, or None if the server does not have it."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 (the URLs of releases.yml, https)
            content: bytes = answer.read()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    return content


def fetch(url: str, read: Callable[[str], bytes | None] = download) -> str | None:
    """Return a page as text, or None if the server does not have it. A package index is read compressed, if there is such a file."""
    packed = read(f"{url}.gz") if url.endswith("/Packages") else None
    content = gzip.decompress(packed) if packed is not None else read(url)
    return None if content is None else content.decode()


def need(url: str, text: str | None) -> str:
    """Return the text, or raise OSError if there is none: a repository that moved must not look like one without new releases."""
    if not text:
        raise FileNotFoundError(f"{url} is empty or does not exist")
    return text


def listed_folders(url: str, get: Fetch) -> set[str]:
    """Return the folders with a version as their name, from the page that lists a folder.

    Raises:
        FileNotFoundError: The page does not exist or lists no such folder.
    """
    found = re.findall(r'href="(?:\./)?(\d+(?:\.\d+)+)/"', need(url, get(url)))
    need(url, " ".join(found))
    return set(found)


def package_versions(index: str, package: str) -> list[str]:
    """Return the versions of a package, from a package index of apt."""
    stanzas = (dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line) for stanza in index.split("\n\n"))
    return [stanza["Version"] for stanza in stanzas if stanza.get("Package") == package]


def parts(version: str) -> tuple[int, ...]:
    """Return a version as numbers, to compare it."""
    return tuple(int(part) for part in version.split("."))


def driver_folder(series: Mapping[str, Any], patch: str) -> str:
    """Return the driver folder of a patch release. In every series, ROCm and its driver have the same last number."""
    first = next(iter(series["releases"].values()))["driver"]
    stem = ".".join(first.split(".")[:2])
    return stem if patch == "0" else f"{stem}.{patch}"


def amd_changes(known: Mapping[str, Any], get: Fetch) -> Iterator[Release | str]:
    """Return new releases of known series, and lines about what a person must decide."""
    base = known["base_url"]
    drivers, rocm = (listed_folders(f"{base}/{folder}/", get) for folder in ("amdgpu", "rocm/apt"))
    for folder in sorted(rocm, key=parts):
        name = folder if folder.count(".") == 2 else f"{folder}.0"
        series, patch = name.rsplit(".", 1)
        if series not in known["series"]:
            if parts(series) > max(parts(one) for one in known["series"]):
                yield f"ROCm {name}: new series {series}; add it with its kernels and models from the vendor's system requirements"
            continue
        entry = known["series"][series]
        if name in entry["releases"]:
            continue
        driver = driver_folder(entry, patch)
        if driver not in drivers:
            yield f"ROCm {name}: left out, the repository has no driver {driver}"
            continue
        yield _confirmed(Release(series, name, driver, folder, ""), entry["module"], get(amd_index(base, driver)) or "")


def amd_index(base: str, driver: str) -> str:
    """Return the URL of a driver's package index."""
    return f"{base}/amdgpu/{driver}/ubuntu/dists/{AMD_SUITE}/main/binary-amd64/Packages"


def _confirmed(release: Release, module: str, index: str) -> Release | str:
    """Return the release with the build of its package, or why it is not one of its series."""
    for version in package_versions(index, "amdgpu-dkms"):
        found = re.match(r"1:(\d+\.\d+\.\d+)\.(\d+)-", version)
        if found and found[1] == module:
            return Release(release.series, release.name, release.driver, release.rocm, found[2])
        return f"ROCm {release.name}: left out, its package amdgpu-dkms {version} has another module than {module} of the series"
    return f"ROCm {release.name}: left out, the index of driver {release.driver} has no amdgpu-dkms"


def nvidia_changes(known: Mapping[str, Any], get: Fetch) -> Iterator[str]:
    """Return lines about new branches, and about branches whose fabric manager is not in the repository."""
    url = f"{known['base_url']}/{NVIDIA_SYSTEM}/Packages"
    index = need(url, get(url))
    newest: dict[str, str] = {}
    for version in package_versions(index, known["driver_packages"][0]):
        plain = version.partition("-")[0]
        branch = plain.partition(".")[0]
        newest[branch] = max(plain, newest.get(branch, plain), key=parts)
    need(url, " ".join(newest))
    for branch, version in sorted(newest.items()):
        series = known["series"].get(branch)
        if series is None:
            if branch > max(known["series"]):
                yield f"NVIDIA {branch}: new branch ({version}); add it with its kernels from the driver installation guide"
            continue
        for package in series["fabric_packages"]:
            if not any(one.startswith(f"{version}-") for one in package_versions(index, package)):
                yield f"NVIDIA {branch}: the repository has {known['driver_packages'][0]} {version}, but no {package} of this version"


def with_releases(text: str, new: Sequence[Release]) -> str:
    """Return releases.yml with new releases after those of their series; comments stay."""
    lines = text.splitlines(keepends=True)
    for release in sorted(new, key=lambda one: parts(one.name)):
        entries = [number for number, line in enumerate(lines) if re.match(rf"        {re.escape(release.series)}\.\d+: \{{driver", line)]
        older = [number for number in entries if parts(lines[number].split(":")[0].strip()) < parts(release.name)]
        lines.insert((older[-1] + 1) if older else entries[0], f"{release.line}\n")
    return "".join(lines)


def main(argv: Sequence[str] | None = None, *, get: Fetch = fetch, path: Path = LIST) -> int:
    """Print the changes; return 0, or 1 if a repository cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="add the new releases of known series to releases.yml")
    write = parser.parse_args(argv).write
    text = path.read_text(encoding="utf-8")
    known = yaml.safe_load(text)
    try:
        changes = [*amd_changes(known["amd"], get), *nvidia_changes(known["nvidia"], get)]
    except (OSError, UnicodeDecodeError) as error:
        print(f"cannot read a repository: {error}\n  fix: check the network and the proxy of this machine", file=sys.stderr)
        return 1
    new = [change for change in changes if isinstance(change, Release)]
    for change in changes:
        print(f"ROCm {change.name}: new, driver {change.driver}" if isinstance(change, Release) else change)
    if not changes:
        print("releases.yml has every release of the repositories")
    if write and new:
        path.write_text(with_releases(text, new), encoding="utf-8")
        print(f"added {len(new)} to {path.name}; set `read` of the series to today")
    return 0


if __name__ == "__main__":
    sys.exit(main())
