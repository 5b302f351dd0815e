"""Test the lock with the real apt and pip."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import Lock, Need, Needs, Target
from primus_bootstrap.bundle.lock import missing_from_lock
from primus_bootstrap.bundle.wheels import python_tag
from tests.integration.bundle_rig import make_index, make_package, make_source, serve_folder
from tests.unit.registry_rig import serve_registry
from tests.unit.test_bundle_lock import TARGET, lock_needs, needs_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a folder over HTTP on loopback; return the folder and its URL."""
    folder = tmp_path / "site"
    folder.mkdir()
    with serve_folder(folder) as url:
        yield folder, url


def packages(target: Target, *names: str) -> Needs:
    """Return the needs for packages on one host."""
    return Needs(needs_of(*(Need("package", name, target) for name in names)), ((target, frozenset(names)),))


def test_dependencies_are_locked(tmp_path: Path) -> None:
    """Dependencies are locked with version and checksum; other packages are not."""
    source = tmp_path / "source"
    source.mkdir()
    needed = make_package(source, "needed", version="2:3.1+b~1")
    make_package(source, "service", depends="needed (>= 2:3)")
    make_package(source, "unrelated")

    lock, unresolved = lock_needs(packages(TARGET, "service"), make_source(source), tmp_path)

    assert unresolved == []
    assert {(item.name, item.version) for item in lock.items} == {("service", "1.0"), ("needed", "2:3.1+b~1")}
    found = next(item for item in lock.items if item.name == "needed")
    assert (found.size_bytes, found.path) == (needed.stat().st_size, "apt/bookworm-amd64/needed_2%3a3.1+b~1_amd64.deb")
    assert found.url.startswith(f"file:{source}/./needed_2")


def test_installed_packages_are_locked(tmp_path: Path) -> None:
    """A package that this machine has is locked, because another host may lack it."""
    source = tmp_path / "source"
    source.mkdir()
    make_package(source, "dpkg", version="99")

    lock, _ = lock_needs(packages(TARGET, "dpkg"), make_source(source), tmp_path)

    assert [(item.name, item.version) for item in lock.items] == [("dpkg", "99")]


def test_missing_package_is_reported(tmp_path: Path) -> None:
    """The other packages are locked; the set with the missing package is not covered."""
    source = tmp_path / "source"
    source.mkdir()
    make_package(source, "there")
    needs = Needs((), ((TARGET, frozenset({"there"})), (TARGET, frozenset({"absent"}))))

    lock, unresolved = lock_needs(needs, make_source(source), tmp_path)

    assert unresolved == ["absent for bookworm-amd64"]
    assert [item.name for item in lock.items] == ["there"]
    assert missing_from_lock(needs, lock) == ("packages of bookworm-amd64: absent",)


def test_unreachable_source_keeps_the_earlier_lock(tmp_path: Path) -> None:
    """Earlier entries stay, and the failure is reported."""
    source = tmp_path / "source"
    source.mkdir()
    make_package(source, "service")
    needs = packages(TARGET, "service")
    before, _ = lock_needs(needs, make_source(source), tmp_path)

    after, unresolved = lock_needs(needs, Sources(f"deb [trusted=yes] file:{tmp_path}/gone ./\n", "list"), tmp_path, before)

    assert unresolved == ["the packages of bookworm-amd64"]
    assert after == before


def test_checksum_of_a_file_is_recorded(tmp_path: Path, site: tuple[Path, str]) -> None:
    """The file is unpinned, and the recorded checksum stays if the server changes the file."""
    folder, url = site
    (folder / "chart.tgz").write_bytes(b"first")
    need = Need("file", f"{url}/chart.tgz", version="1")
    lock, unresolved = lock_needs(Needs(needs_of(need), ()), Sources(""), tmp_path)
    (folder / "chart.tgz").write_bytes(b"second")
    again, _ = lock_needs(Needs(needs_of(need), ()), Sources(""), tmp_path, lock)

    [item] = lock.items
    assert unresolved == []
    assert (item.sha256, item.pinned, item.path) == (hashlib.sha256(b"first").hexdigest(), False, "files/127.0.0.1/chart.tgz")
    assert (lock.pin(need), Lock().pin(need)) == ("lock", "unpinned")
    assert again == lock
    assert lock_needs(Needs(needs_of(Need("file", f"{url}/none")), ()), Sources(""), tmp_path)[1] == [f"{url}/none"]


def test_file_with_a_proof_is_pinned(tmp_path: Path, site: tuple[Path, str]) -> None:
    """If the proof fails, the file is not locked."""
    folder, url = site
    (folder / "release.tgz").write_bytes(b"the release")
    need = Need("file", f"{url}/release.tgz", version="1")

    def proof(path: Path) -> str:
        return "" if path.read_bytes() == b"the release" else "is another one"

    lock, _ = lock_needs(Needs(needs_of(need), ()), Sources(""), tmp_path, proofs={need.name: proof})
    (folder / "release.tgz").write_bytes(b"not the release")

    assert [item.pinned for item in lock.items] == [True]
    assert lock.pin(need) == "pinned"
    assert lock_needs(Needs(needs_of(need), ()), Sources(""), tmp_path, proofs={need.name: proof}) == (Lock(), [need.name])


def test_images_and_charts_are_locked_with_their_digests(tmp_path: Path) -> None:
    """Only a digest in its reference pins an image; a chart has a file in the bundle."""
    with serve_registry() as registry:
        digest, layer = registry.put_image("a/b", "1"), registry.put_chart("charts/q", "2.0", b"a chart")
        tagged, pinned = Need("image", f"{registry.server}/a/b:1"), Need("image", f"{registry.server}/a/b@sha256:{digest}")
        chart, none = Need("file", f"oci://{registry.server}/charts/q", version="2.0"), Need("image", f"{registry.server}/a/none:1")
        lock, unresolved = lock_needs(Needs(needs_of(chart, tagged, pinned, none), ()), Sources(""), tmp_path)

    assert [(item.sha256, item.path, item.pinned) for item in lock.items] == [
        (layer, "files/127.0.0.1/charts/q-2.0.tgz", False),
        (digest, "", False),
        (digest, "", True),
    ]
    assert [item.path for item in lock.files] == ["files/127.0.0.1/charts/q-2.0.tgz"]
    assert (lock.pin(tagged), lock.pin(pinned)) == ("unpinned", "pinned")
    assert unresolved == [f"image {none.name}"]
    assert missing_from_lock(Needs(needs_of(tagged, none), ()), lock) == (f"image {none.name}",)


def test_wheels_are_locked_with_their_dependencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program pip resolves them together for this Python; another Python is not covered."""
    monkeypatch.setenv("PIP_INDEX_URL", make_index(tmp_path / "index", {"tool": "needed>=2", "needed": "", "other": ""}))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    names = ("tool==1.0", "other==1.0")
    needs = Needs(needs_of(*(Need("wheel", name, together=names) for name in names)), ())
    lock, unresolved = lock_needs(needs, Sources(""), tmp_path)

    assert unresolved == []
    assert {(item.name, item.path) for item in lock.items} == {
        (f"{name}=={version}", f"wheels/{name}-{version}-py3-none-any.whl")
        for name, version in (("tool", "1.0"), ("needed", "2.0"), ("other", "1.0"))
    }
    assert missing_from_lock(needs, lock) == ()
    assert missing_from_lock(needs, replace(lock, wheel_sets=(("cp27-x86_64", frozenset(names)),))) == (
        f"wheels other==1.0, tool==1.0 for {python_tag()}",
    )
    after, failed = lock_needs(Needs(needs_of(Need("wheel", "tool==9", together=("tool==9",))), ()), Sources(""), tmp_path, lock)
    assert (after.items, failed) == ((), ["tool==9"])
