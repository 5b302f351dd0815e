"""Test the sources of the pinned release, and that no other release is used."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.inventory.kubespray_release import load_release, load_releases
from primus_bootstrap.kubernetes import release as releases
from primus_bootstrap.kubernetes.git_tree import tree_of_archive
from primus_bootstrap.kubernetes.release import prepare_release
from primus_bootstrap.kubernetes.source import KubespraySource
from tests.unit.kubespray_release_rig import checked_out_release

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = load_release().version.removeprefix("v")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace git, venv and pip, and return their calls; git reports the pinned commit."""
    made: list[list[str]] = []

    def call(argv: Sequence[str], _limit_s: float, _what: str, _fix: str) -> str:
        made.append(list(argv))
        if "clone" in argv:
            _checkout(argv[-1])
        if "venv" in argv:
            Path(argv[-1]).mkdir()
        return f"{load_release().commit}\n"

    monkeypatch.delenv(releases.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(releases, "_call", call)
    return made


def _checkout(path: Path | str, version: str = VERSION) -> Path:
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "galaxy.yml").write_text(f"name: kubespray\nversion: {version}\n", encoding="utf-8")
    return folder


def _archive(path: Path, version: str = VERSION) -> str:
    text = f"version: {version}\n".encode()
    with tarfile.open(path, "w:gz") as packed:
        entry = tarfile.TarInfo("kubespray-x/galaxy.yml")
        entry.size = len(text)
        packed.addfile(entry, io.BytesIO(text))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_release_is_downloaded_once(tmp_path: Path, calls: list[list[str]]) -> None:
    """The tag is cloned and the environment created; the next call uses both."""
    ready = prepare_release(KubespraySource(), cache=tmp_path)
    count = len(calls)
    again = prepare_release(KubespraySource(), cache=tmp_path)

    assert again == ready
    assert len(calls) == count
    assert calls[0][:2] == ["git", "clone"]
    assert "v2.31.0" in calls[0]
    assert "ansible==11.13.0" in calls[-1]
    assert ready.checkout == tmp_path / "v2.31.0"


def test_release_without_a_tag_is_fetched_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git fetches the commit into an empty folder, without history; another commit is refused."""
    release = next(one for one in load_releases().values() if not one.tag)
    made: list[list[str]] = []

    def call(argv: Sequence[str], *_: object) -> str:
        made.append(list(argv))
        if "init" in argv:
            _checkout(argv[-1], release.number)
        return f"{release.commit}\n"

    monkeypatch.delenv(releases.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(releases, "_call", call)
    monkeypatch.setattr(releases, "_environment", lambda *_: tmp_path)
    ready = prepare_release(KubespraySource(release=release.version), cache=tmp_path)

    assert ready.checkout == tmp_path / release.version
    assert [argv[-1] for argv in made if "fetch" in argv] == [release.commit]
    assert [argv[-1] for argv in made if "checkout" in argv] == ["FETCH_HEAD"]
    monkeypatch.setattr(releases, "_call", lambda *a: "f00\n" if "rev-parse" in a[0] else call(*a))
    with pytest.raises(PlanError, match=f"is commit f00, expected {release.commit}"):
        prepare_release(KubespraySource(release=release.version), cache=tmp_path / "other")


def test_moved_tag_is_refused(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag with another commit is refused, and the clone is removed."""
    inner = releases._call
    monkeypatch.setattr(releases, "_call", lambda *a: "f00\n" if "rev-parse" in a[0] else inner(*a))
    with pytest.raises(PlanError, match="commit f00, expected 1c9add48"):
        prepare_release(KubespraySource(), cache=tmp_path)

    assert calls
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def _released(monkeypatch: pytest.MonkeyPatch, archive: Path) -> None:
    """Replace the tree hash of archives with the pinned one."""
    release = replace(load_release(), tree=tree_of_archive(archive))
    monkeypatch.setattr(releases, "load_release", lambda _: release)


def test_archive_is_checked(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The sha256 and the content are checked; with a folder of wheels pip uses no index."""
    total = _archive(tmp_path / "a.tgz")
    _released(monkeypatch, tmp_path / "a.tgz")
    ready = prepare_release(KubespraySource(archive=str(tmp_path / "a.tgz"), sha256=total, packages="/wheels"), cache=tmp_path / "cache")

    assert (ready.checkout / "galaxy.yml").is_file()
    assert "--no-index" in calls[-1]
    with pytest.raises(PlanError, match="expected 0000"):
        prepare_release(KubespraySource(archive=str(tmp_path / "a.tgz"), sha256="0" * 64), cache=tmp_path / "other")
    old = _archive(tmp_path / "b.tgz", "2.30.0")
    with pytest.raises(PlanError, match=r"differs from Kubespray v2\.31\.0"):
        prepare_release(KubespraySource(archive=str(tmp_path / "b.tgz"), sha256=old), cache=tmp_path / "third")
    (tmp_path / "c.tgz").write_bytes(b"no archive")
    with pytest.raises(PlanError, match="is not an archive of a release"):
        prepare_release(
            KubespraySource(archive=str(tmp_path / "c.tgz"), sha256=hashlib.sha256(b"no archive").hexdigest()), cache=tmp_path / "fourth"
        )


def _bundle(folder: Path, *, without: str = "") -> KubespraySource:
    """Create a bundle with the archive and a wheel, except one path; return the source in hosts.yaml."""
    url = "https://example.com/archive/release.tar.gz"
    archive = folder / "files" / "example.com" / "archive" / "release.tar.gz"
    archive.parent.mkdir(parents=True)
    (folder / "wheels").mkdir()
    (folder / "wheels" / "ansible.whl").touch()
    files = [{"name": url, "path": str(archive.relative_to(folder)), "sha256": _archive(archive)}]
    wheels = [{"name": "ansible==11.13.0", "path": "wheels/ansible.whl"}]
    lock = {"files": files, "wheels": wheels}
    if without in lock:
        lock[without] = []
    elif without:
        (folder / without).unlink()
    (folder / "bundle.lock.yaml").write_text(yaml.safe_dump(lock))
    return KubespraySource(bundle=str(folder), archive_url=url)


def test_bundle_needs_no_download(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive and the wheels come from the bundle, with the sha256 of its lock file; git and an index are not used."""
    source = _bundle(tmp_path / "bundle")
    archive = tmp_path / "bundle" / "files" / "example.com" / "archive" / "release.tar.gz"
    _released(monkeypatch, archive)
    ready = prepare_release(source, cache=tmp_path / "cache")

    assert (ready.checkout / "galaxy.yml").is_file()
    assert not any("clone" in call for call in calls)
    assert "--no-index" in calls[-1]
    assert str(tmp_path / "bundle" / "wheels") in calls[-1]
    archive.write_bytes(archive.read_bytes() + b"more")
    with pytest.raises(PlanError, match="has the sha256"):
        prepare_release(source, cache=tmp_path / "other")


@pytest.mark.parametrize(
    ("without", "output"),
    [
        ("files", "does not contain https://example.com/archive/release.tar.gz"),
        ("wheels", "lists no wheels"),
        ("files/example.com/archive/release.tar.gz", "files/example.com/archive/release.tar.gz does not exist"),
        ("wheels/ansible.whl", "lacks wheels/ansible.whl"),
    ],
)
def test_incomplete_bundle_is_refused(tmp_path: Path, calls: list[list[str]], without: str, output: str) -> None:
    """The error names the missing file, and the fix gives the command."""
    with pytest.raises(PlanError, match=output) as caught:
        prepare_release(_bundle(tmp_path / "bundle", without=without), cache=tmp_path / "cache")

    assert "bundle lock" in caught.value.fix
    assert calls == []
    with pytest.raises(PlanError, match=r"nowhere/bundle\.lock\.yaml"):
        prepare_release(KubespraySource(bundle=str(tmp_path / "nowhere")), cache=tmp_path / "cache")


def test_folder_overrides_the_bundle(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder only the wheels of the bundle are used."""
    mine = _checkout(tmp_path / "mine")
    monkeypatch.setenv(releases.FOLDER_VARIABLE, str(mine))
    source = _bundle(tmp_path / "bundle", without="files")

    assert prepare_release(source, cache=tmp_path / "cache").checkout == mine
    assert str(tmp_path / "bundle" / "wheels") in calls[-1]


@pytest.mark.skipif(not os.environ.get("PRIMUS_KUBESPRAY_DIR"), reason="PRIMUS_KUBESPRAY_DIR is not a checkout of Kubespray")
def test_pinned_tree_matches_the_release(tmp_path: Path) -> None:
    """A tar archive of a real checkout has the pinned tree hash."""
    folder = Path(os.environ["PRIMUS_KUBESPRAY_DIR"])
    archive = tmp_path / "kubespray.tgz"
    subprocess.run(["tar", "-czf", str(archive), "--exclude=.git", "-C", str(folder.parent), folder.name], timeout=120, check=True)

    assert releases.archive_fault(archive, load_release(checked_out_release(folder))) == ""


def test_folder_is_used(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder from the source or the environment is used; another version or content is refused."""
    mine = _checkout(tmp_path / "mine")
    monkeypatch.setenv(releases.FOLDER_VARIABLE, str(mine))

    assert prepare_release(KubespraySource(), cache=tmp_path / "cache").checkout == mine
    assert not any("clone" in call for call in calls)
    with pytest.raises(PlanError, match=r"contains Kubespray v2\.29\.1"):
        prepare_release(KubespraySource(folder=str(_checkout(tmp_path / "old", "2.29.1"))), cache=tmp_path / "cache")
    with pytest.raises(PlanError, match="not a checkout of Kubespray"):
        prepare_release(KubespraySource(folder=str(tmp_path)), cache=tmp_path / "cache")
