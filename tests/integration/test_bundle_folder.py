"""Test the folder of a bundle: downloaded with the real programs, resumed and checked."""

from __future__ import annotations

import hashlib
import subprocess
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import BundleError, Lock, Locked, Need, Needs, Requirement, Target
from primus_bootstrap.bundle.folder import check, create
from primus_bootstrap.bundle.lock import make_lock
from tests.integration.bundle_rig import make_package, make_source, serve_folder
from tests.unit.registry_rig import serve_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TARGET = Target("bookworm", "amd64")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a folder over HTTP; return the folder and its URL."""
    folder = tmp_path / "site"
    folder.mkdir()
    with serve_folder(folder) as url:
        yield folder, url


@pytest.fixture
def locked(tmp_path: Path, site: tuple[Path, str]) -> tuple[Lock, Sources]:
    """Return a lock with two packages of a local source and a file of a web server."""
    source = tmp_path / "source"
    source.mkdir()
    make_package(source, "needed", version="1:2.0")
    make_package(source, "service", depends="needed")
    folder, url = site
    (folder / "tool.tar").write_bytes(b"a tool")
    file = Need("file", f"{url}/tool.tar", sha256=hashlib.sha256(b"a tool").hexdigest(), version="1")
    needs = Needs((Requirement(file, ("role",), ("all",), ("host",)),), ((TARGET, frozenset({"service"})),))
    sources = make_source(source)
    lock, unresolved = make_lock(needs, Lock(), sources=lambda _: sources, folder=tmp_path / "cache", progress=lambda _: None)
    assert unresolved == ()
    return lock, sources


def create_bundle(lock: Lock, sources: Sources, tmp_path: Path) -> dict[str, str]:
    """Create the bundle in `out`; return the failures."""
    return create(lock, tmp_path / "out", sources=lambda _: sources, cache=tmp_path / "cache", progress=lambda _: None)


def test_created_bundle_is_complete(tmp_path: Path, locked: tuple[Lock, Sources]) -> None:
    """Every file has its checksum, and there are no others; a second create changes nothing."""
    lock, sources = locked

    assert create_bundle(lock, sources, tmp_path) == {}
    state = check(lock, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert create_bundle(lock, sources, tmp_path) == {}

    assert (state.missing, state.damaged, state.surplus, state.complete) == ([], [], [], True)
    assert state.whole == len(lock.items) + 3
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_apt_installs_from_a_bundle(tmp_path: Path, locked: tuple[Lock, Sources]) -> None:
    """The program apt reads the index without a warning, and finds a package with its dependencies."""
    lock, sources = locked
    create_bundle(lock, sources, tmp_path)
    bundle = Sources(f"deb [trusted=yes] file:{tmp_path}/out/apt/bookworm-amd64 ./\n", "list")

    again, unresolved = make_lock(
        Needs((), ((TARGET, frozenset({"service"})),)), Lock(), sources=lambda _: bundle, folder=tmp_path / "other", progress=lambda _: None
    )

    assert unresolved == ()
    assert {(item.name, item.version, item.sha256) for item in again.items} == {
        (item.name, item.version, item.sha256) for item in lock.items if item.kind == "package"
    }


def test_damage_is_reported(tmp_path: Path, locked: tuple[Lock, Sources]) -> None:
    """A truncated package, a missing file, an additional file and a changed index are reported."""
    lock, sources = locked
    create_bundle(lock, sources, tmp_path)
    out = tmp_path / "out"
    package, file = (next(out.rglob(pattern)) for pattern in ("service*.deb", "tool.tar"))
    package.write_bytes(package.read_bytes()[:-1])
    file.unlink()
    (out / "apt" / "notes.txt").write_text("mine")

    state = check(lock, out)

    assert state.damaged == [str(package.relative_to(out))]
    assert state.missing == ["files/127.0.0.1/tool.tar"]
    assert "apt/notes.txt" in state.surplus
    assert not state.complete


def test_changed_index_is_damage(tmp_path: Path, locked: tuple[Lock, Sources]) -> None:
    """A changed index could create_bundle hosts install other packages."""
    lock, sources = locked
    create_bundle(lock, sources, tmp_path)
    index = tmp_path / "out" / "apt" / "bookworm-amd64" / "Packages"
    index.write_text(index.read_text().replace("Depends: needed", "Depends: other"))

    assert check(lock, tmp_path / "out").damaged == ["apt/bookworm-amd64/Packages"]


def test_interrupted_create_continues(tmp_path: Path, locked: tuple[Lock, Sources], site: tuple[Path, str]) -> None:
    """Complete files are not downloaded again; incomplete and damaged ones are. The lock file is written last."""
    lock, sources = locked
    (site[0] / "tool.tar").rename(site[0] / "aside")
    assert list(create_bundle(lock, sources, tmp_path)) == ["files/127.0.0.1/tool.tar"]
    out = tmp_path / "out"
    whole, damaged = next(out.rglob("needed*.deb")), next(out.rglob("service*.deb"))
    (damaged.parent / ".half.deb.part").write_bytes(b"half")
    damaged.write_bytes(b"torn")
    stamp = whole.stat().st_mtime_ns

    assert not (out / "bundle.lock.yaml").exists()
    (site[0] / "aside").rename(site[0] / "tool.tar")
    assert create_bundle(lock, sources, tmp_path) == {}
    assert check(lock, out).complete
    assert check(lock, out).surplus == []
    assert whole.stat().st_mtime_ns == stamp


def test_file_with_another_checksum_is_refused(tmp_path: Path, locked: tuple[Lock, Sources], site: tuple[Path, str]) -> None:
    """The failure has both checksums, and the file is removed."""
    lock, sources = locked
    (site[0] / "tool.tar").write_bytes(b"another tool")

    failed = create_bundle(lock, sources, tmp_path)

    assert list(failed) == ["files/127.0.0.1/tool.tar"]
    assert hashlib.sha256(b"another tool").hexdigest() in failed["files/127.0.0.1/tool.tar"]
    assert not (tmp_path / "out" / "files" / "127.0.0.1" / "tool.tar").exists()


def test_package_with_another_checksum_is_refused(tmp_path: Path, locked: tuple[Lock, Sources]) -> None:
    """The program apt refuses the package."""
    lock, sources = locked
    package = tmp_path / "source" / "service_1.0_amd64.deb"
    package.write_bytes(package.read_bytes() + b"more")

    assert list(create_bundle(lock, sources, tmp_path)) == ["apt/bookworm-amd64/service_1.0_amd64.deb"]
    assert not list((tmp_path / "out").rglob("service*"))


def test_folder_with_other_files_is_refused(tmp_path: Path, locked: tuple[Lock, Sources]) -> None:
    """Nothing is written to a folder with other files."""
    lock, sources = locked
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")

    with pytest.raises(BundleError, match="not a bundle"):
        create_bundle(lock, sources, tmp_path)

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_url_with_another_scheme_is_refused(tmp_path: Path) -> None:
    """A lock file must not read files of this machine."""
    lock = Lock((Locked("file", "file:///etc/hostname", "1", "file:///etc/hostname", "a" * 64, 0, "files/local/x"),))

    assert "only http and https" in create_bundle(lock, Sources(""), tmp_path)["files/local/x"]


def test_chart_is_downloaded_and_image_is_not(tmp_path: Path) -> None:
    """A bundle contains no images; a chart with another checksum is refused."""
    with serve_registry() as registry:
        url, digest = f"oci://{registry.server}/charts/q", registry.put_chart("charts/q", "2.0", b"a chart")
        path = "files/127.0.0.1/charts/q-2.0.tgz"
        image = Locked("image", "quay.io/a/b:1", "", "quay.io/a/b:1", "d" * 64, 0, "", pinned=False)
        lock = Lock((Locked("file", url, "2.0", url, digest, 7, path, pinned=False), image))
        assert create_bundle(lock, Sources(""), tmp_path) == {}
        state = check(lock, tmp_path / "out")
        registry.contents[f"charts/q/blobs/sha256:{digest}"] = b"another chart"
        (tmp_path / "out" / path).unlink()
        failed = create_bundle(lock, Sources(""), tmp_path)

    assert (state.complete, state.whole, state.surplus) == (True, 2, [])
    assert list(failed) == [path]
    assert not (tmp_path / "out" / path).exists()


def test_index_equals_that_of_dpkg_scanpackages(tmp_path: Path, locked: tuple[Lock, Sources]) -> None:
    """Every field of every package is equal."""
    lock, sources = locked
    create_bundle(lock, sources, tmp_path)
    folder = tmp_path / "out" / "apt" / "bookworm-amd64"
    done = subprocess.run(["dpkg-scanpackages", "."], cwd=folder, capture_output=True, text=True, timeout=60, check=True)

    def fields(text: str) -> set[str]:
        return {line for line in text.splitlines() if line and not line.startswith(("MD5sum", "SHA1"))}

    assert fields((folder / "Packages").read_text()) == fields(done.stdout)
