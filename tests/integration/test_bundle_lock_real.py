"""A lock: resolved by apt itself, written so that it can be read again, and honest about what it does not hold."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import Lock, Need, Needs, Target
from primus_bootstrap.bundle.lock import not_covered
from primus_bootstrap.bundle.wheels import python_of
from tests.integration.bundle_rig import make_index, make_package, make_source, serve_folder
from tests.unit.registry_rig import serve_registry
from tests.unit.test_bundle_lock import TARGET, make, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder that is served over HTTP on loopback, and its URL."""
    folder = tmp_path / "site"
    folder.mkdir()
    with serve_folder(folder) as url:
        yield folder, url


def packages(target: Target, *names: str) -> Needs:
    """Return the need for packages, all on one host."""
    return Needs(wanted(*(Need("package", name, target) for name in names)), ((target, frozenset(names)),))


def test_all_that_a_package_depends_on_is_locked(tmp_path: Path) -> None:
    """What is needed comes along, with version and sum of the file; what is not needed stays out."""
    source = tmp_path / "source"
    source.mkdir()
    needed = make_package(source, "needed", version="2:3.1+b~1")
    make_package(source, "service", depends="needed (>= 2:3)")
    make_package(source, "unrelated")

    lock, unresolved = make(packages(TARGET, "service"), make_source(source), tmp_path)

    assert unresolved == []
    assert {(item.name, item.version) for item in lock.items} == {("service", "1.0"), ("needed", "2:3.1+b~1")}
    found = next(item for item in lock.items if item.name == "needed")
    assert (found.size_bytes, found.path) == (needed.stat().st_size, "apt/bookworm-amd64/needed_2%3a3.1+b~1_amd64.deb")
    assert found.url.startswith(f"file:{source}/./needed_2")


def test_nothing_counts_as_installed(tmp_path: Path) -> None:
    """A package that this machine has is locked like any other: another host may lack it."""
    source = tmp_path / "source"
    source.mkdir()
    make_package(source, "dpkg", version="99")

    lock, _ = make(packages(TARGET, "dpkg"), make_source(source), tmp_path)

    assert [(item.name, item.version) for item in lock.items] == [("dpkg", "99")]


def test_a_package_that_no_source_has_is_named(tmp_path: Path) -> None:
    """The rest is locked; what cannot be, is reported, and is not covered."""
    source = tmp_path / "source"
    source.mkdir()
    make_package(source, "there")
    needs = Needs((), ((TARGET, frozenset({"there"})), (TARGET, frozenset({"absent"}))))

    lock, unresolved = make(needs, make_source(source), tmp_path)

    assert unresolved == ["absent for bookworm-amd64"]
    assert [item.name for item in lock.items] == ["there"]
    assert not_covered(needs, lock) == ("packages of bookworm-amd64: absent",)


def test_a_source_that_does_not_answer_leaves_the_lock_as_it_was(tmp_path: Path) -> None:
    """What was locked before stays locked, and the failure is reported."""
    source = tmp_path / "source"
    source.mkdir()
    make_package(source, "service")
    needs = packages(TARGET, "service")
    before, _ = make(needs, make_source(source), tmp_path)

    after, unresolved = make(needs, Sources(f"deb [trusted=yes] file:{tmp_path}/gone ./\n", "list"), tmp_path, before)

    assert unresolved == ["the packages of bookworm-amd64"]
    assert after == before


def test_a_file_without_a_sum_is_recorded_as_it_is_now(tmp_path: Path, site: tuple[Path, str]) -> None:
    """It counts as unpinned, and what was recorded once stays whatever the server has later."""
    folder, url = site
    (folder / "chart.tgz").write_bytes(b"first")
    need = Need("file", f"{url}/chart.tgz", version="1")
    lock, unresolved = make(Needs(wanted(need), ()), Sources(""), tmp_path)
    (folder / "chart.tgz").write_bytes(b"second")
    again, _ = make(Needs(wanted(need), ()), Sources(""), tmp_path, lock)

    [item] = lock.items
    assert unresolved == []
    assert (item.sha256, item.pinned, item.path) == (hashlib.sha256(b"first").hexdigest(), False, "files/127.0.0.1/chart.tgz")
    assert (lock.pin(need), Lock().pin(need)) == ("lock", "unpinned")
    assert again == lock
    assert make(Needs(wanted(Need("file", f"{url}/none")), ()), Sources(""), tmp_path)[1] == [f"{url}/none"]


def test_a_file_may_be_proven_by_something_else_than_a_sum(tmp_path: Path, site: tuple[Path, str]) -> None:
    """Then it is pinned; where the proof fails nothing is locked."""
    folder, url = site
    (folder / "release.tgz").write_bytes(b"the release")
    need = Need("file", f"{url}/release.tgz", version="1")

    def proof(path: Path) -> str:
        return "" if path.read_bytes() == b"the release" else "is another one"

    lock, _ = make(Needs(wanted(need), ()), Sources(""), tmp_path, proofs={need.name: proof})
    (folder / "release.tgz").write_bytes(b"not the release")

    assert [item.pinned for item in lock.items] == [True]
    assert lock.pin(need) == "pinned"
    assert make(Needs(wanted(need), ()), Sources(""), tmp_path, proofs={need.name: proof}) == (Lock(), [need.name])


def test_images_and_charts_of_a_registry_are_locked_by_digest(tmp_path: Path) -> None:
    """An image has no file in a bundle, and only a digest in its reference pins it; a chart has one, under Helm's name."""
    with serve_registry() as registry:
        digest, layer = registry.put_image("a/b", "1"), registry.put_chart("charts/q", "2.0", b"a chart")
        tagged, pinned = Need("image", f"{registry.server}/a/b:1"), Need("image", f"{registry.server}/a/b@sha256:{digest}")
        chart, none = Need("file", f"oci://{registry.server}/charts/q", version="2.0"), Need("image", f"{registry.server}/a/none:1")
        lock, unresolved = make(Needs(wanted(chart, tagged, pinned, none), ()), Sources(""), tmp_path)

    assert [(item.sha256, item.path, item.pinned) for item in lock.items] == [
        (layer, "files/127.0.0.1/charts/q-2.0.tgz", False),
        (digest, "", False),
        (digest, "", True),
    ]
    assert [item.path for item in lock.files] == ["files/127.0.0.1/charts/q-2.0.tgz"]
    assert (lock.pin(tagged), lock.pin(pinned)) == ("unpinned", "pinned")
    assert unresolved == [f"image {none.name}"]
    assert not_covered(Needs(wanted(tagged, none), ()), lock) == (f"image {none.name}",)


def test_wheels_come_with_all_that_they_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolved in one go by pip, for this Python; another Python is not covered."""
    monkeypatch.setenv("PIP_INDEX_URL", make_index(tmp_path / "index", {"tool": "needed>=2", "needed": "", "other": ""}))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    names = ("tool==1.0", "other==1.0")
    needs = Needs(wanted(*(Need("wheel", name, together=names) for name in names)), ())
    lock, unresolved = make(needs, Sources(""), tmp_path)

    assert unresolved == []
    assert {(item.name, item.path) for item in lock.items} == {
        (f"{name}=={version}", f"wheels/{name}-{version}-py3-none-any.whl")
        for name, version in (("tool", "1.0"), ("needed", "2.0"), ("other", "1.0"))
    }
    assert not_covered(needs, lock) == ()
    assert not_covered(needs, replace(lock, wheel_sets=(("cp27-x86_64", frozenset(names)),))) == (
        f"wheels other==1.0, tool==1.0 for {python_of()}",
    )
    after, failed = make(Needs(wanted(Need("wheel", "tool==9", together=("tool==9",))), ()), Sources(""), tmp_path, lock)
    assert (after.items, failed) == ((), ["tool==9"])
