"""tools/gpu_releases.py: compares the list of driver releases with package repositories."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tools import gpu_releases
from tools.gpu_releases import Release

if TYPE_CHECKING:
    from collections.abc import Callable

DATA = Path(__file__).parents[1] / "data" / "gpu_releases"
TEXT = gpu_releases.LIST.read_text(encoding="utf-8")
KNOWN = yaml.safe_load(TEXT)
AMD, NVIDIA = KNOWN["amd"]["base_url"], KNOWN["nvidia"]["base_url"]
NEWEST = '        7.2.4: {driver: 30.30.4, rocm: 7.2.4, build: "30300400"}\n'
OLDER = TEXT.replace(NEWEST, "")
PAGES = {
    f"{AMD}/amdgpu/": "amdgpu.html",
    f"{AMD}/rocm/apt/": "rocm_apt.html",
    gpu_releases.amd_index(AMD, "30.30.4"): "amd_30.30.4",
    f"{NVIDIA}/ubuntu2204/x86_64/Packages": "nvidia",
}


def get(url: str) -> str | None:
    """Return a recorded page; None for any other URL."""
    return (DATA / PAGES[url]).read_text(encoding="utf-8") if url in PAGES else None


def amd(text: str = OLDER, source: Callable[[str], str | None] = get) -> list[Release | str]:
    """Return the changes of AMD's part of a list."""
    return list(gpu_releases.amd_changes(yaml.safe_load(text)["amd"], source))


def test_a_new_release_of_a_known_series_has_the_build_of_its_package() -> None:
    """The entry is the one that releases.yml has for it."""
    new = next(change for change in amd() if isinstance(change, Release))

    assert new == Release("7.2", "7.2.4", "30.30.4", "7.2.4", "30300400")
    assert f"{new.line}\n" == NEWEST


def test_every_listed_release_follows_the_rule_for_its_driver_folder() -> None:
    """The tool derives the driver folder of a new release from the rule."""
    for series in KNOWN["amd"]["series"].values():
        for name, release in series["releases"].items():
            assert gpu_releases.driver_folder(series, name.rsplit(".", 1)[1]) == release["driver"]


def test_a_release_without_its_driver_and_a_new_series_are_only_reported() -> None:
    """AMD's repository had no driver 30.30.2 in April 2026. Series before the oldest listed one, and `latest`, are not mentioned."""
    assert [change for change in amd() if isinstance(change, str)] == [
        "ROCm 7.2.2: left out, the repository has no driver 30.30.2",
        "ROCm 7.13.0: new series 7.13; add it with its kernels and models from the vendor's system requirements",
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("6.16.13.", "6.17.0.", "amdgpu-dkms 1:6.17.0.30300400-2341068.22.04 has another module than 6.16.13 of the series"),
        ("Package: amdgpu-dkms", "Package: amdgpu-dkms-firmware", "the index of driver 30.30.4 has no amdgpu-dkms"),
    ],
)
def test_a_release_that_its_index_does_not_confirm_is_left_out(old: str, new: str, reason: str) -> None:
    """A driver with another module is a series of its own."""
    changes = amd(source=lambda url: (page := get(url)) and page.replace(old, new))

    assert f"ROCm 7.2.4: left out, {'its package ' if 'module' in reason else ''}{reason}" in changes
    assert not [change for change in changes if isinstance(change, Release)]


def test_new_branches_and_missing_fabric_managers_are_reported() -> None:
    """The newest version of each branch counts. A branch without its fabric manager cannot be installed on hosts with NVSwitches."""
    assert list(gpu_releases.nvidia_changes(KNOWN["nvidia"], get)) == [
        "NVIDIA 595: the repository has nvidia-open 595.91.07, but no nvidia-fabricmanager of this version",
        "NVIDIA 610: new branch (610.57.04); add it with its kernels from the driver installation guide",
    ]


def test_write_adds_the_release_in_its_place_and_keeps_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Comments and old entries stay: the result is the list of the repository, byte by byte."""
    path = tmp_path / "releases.yml"
    path.write_text(OLDER, encoding="utf-8")

    assert gpu_releases.main([], get=get, path=path) == 0
    assert path.read_text(encoding="utf-8") == OLDER
    assert gpu_releases.main(["--write"], get=get, path=path) == 0
    assert path.read_text(encoding="utf-8") == TEXT
    assert "ROCm 7.2.4: new, driver 30.30.4" in capsys.readouterr().out


@pytest.mark.parametrize("page", [f"{AMD}/amdgpu/", f"{AMD}/rocm/apt/", f"{NVIDIA}/ubuntu2204/x86_64/Packages"])
@pytest.mark.parametrize("answer", [None, "<html>moved</html>"])
def test_repository_that_moved_is_an_error(tmp_path: Path, page: str, answer: str | None) -> None:
    """It must not look like a repository without new releases."""
    path = tmp_path / "releases.yml"
    path.write_text(OLDER, encoding="utf-8")

    assert gpu_releases.main([], get=lambda url: answer if url == page else get(url), path=path) == 1


def test_package_index_is_read_compressed_if_possible() -> None:
    """NVIDIA's index has several megabytes; a mirror may have only the plain one."""
    packed = {"https://r/Packages.gz": gzip.compress(b"Package: a\n")}
    plain = {"https://r/Packages": b"Package: b\n", "https://r/": b"page"}

    assert gpu_releases.fetch("https://r/Packages", {**packed, **plain}.get) == "Package: a\n"
    assert gpu_releases.fetch("https://r/Packages", plain.get) == "Package: b\n"
    assert gpu_releases.fetch("https://r/", plain.get) == "page"
    assert gpu_releases.fetch("https://r/other", plain.get) is None


def test_repository_that_cannot_be_read_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A proxy's error page or a time-out must not look like an empty repository."""

    def fail(url: str) -> str | None:
        raise TimeoutError(url)

    path = tmp_path / "releases.yml"
    path.write_text(OLDER, encoding="utf-8")

    assert gpu_releases.main(["--write"], get=fail, path=path) == 1
    assert path.read_text(encoding="utf-8") == OLDER
    assert "cannot read a repository" in capsys.readouterr().err
