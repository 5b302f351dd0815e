"""Where the pinned release comes from, and that nothing else than that release is ever used."""

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
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.kubernetes import release as releases
from primus_bootstrap.kubernetes.git_tree import tree_of_archive
from primus_bootstrap.kubernetes.release import make_ready
from primus_bootstrap.kubernetes.source import Source

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = load_release().version.removeprefix("v")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stand in for git, venv and pip, and return what was called; git says the pinned commit."""
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


def test_git_is_asked_once(tmp_path: Path, calls: list[list[str]]) -> None:
    """The tag is fetched, its environment made with the exact requirements; the next call finds both."""
    ready = make_ready(Source(), cache=tmp_path)
    count = len(calls)
    again = make_ready(Source(), cache=tmp_path)

    assert again == ready
    assert len(calls) == count
    assert calls[0][:2] == ["git", "clone"]
    assert "v2.31.0" in calls[0]
    assert "ansible==11.13.0" in calls[-1]
    assert ready.checkout == tmp_path / "v2.31.0"


def test_a_moved_tag_is_refused(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is the release, not the name; what was fetched is not kept."""
    inner = releases._call
    monkeypatch.setattr(releases, "_call", lambda *a: "f00\n" if "rev-parse" in a[0] else inner(*a))
    with pytest.raises(PlanError, match="commit f00, expected 1c9add48"):
        make_ready(Source(), cache=tmp_path)

    assert calls
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def _released(monkeypatch: pytest.MonkeyPatch, archive: Path) -> None:
    """Let an archive be what the pinned commit holds."""
    release = replace(load_release(), tree=tree_of_archive(archive))
    monkeypatch.setattr(releases, "load_release", lambda: release)


def test_an_archive_is_checked(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sum first, then that it holds what the released commit holds; a folder of wheels keeps pip off any index."""
    total = _archive(tmp_path / "a.tgz")
    _released(monkeypatch, tmp_path / "a.tgz")
    ready = make_ready(Source(archive=str(tmp_path / "a.tgz"), sha256=total, packages="/wheels"), cache=tmp_path / "cache")

    assert (ready.checkout / "galaxy.yml").is_file()
    assert "--no-index" in calls[-1]
    with pytest.raises(PlanError, match="expected 0000"):
        make_ready(Source(archive=str(tmp_path / "a.tgz"), sha256="0" * 64), cache=tmp_path / "other")
    old = _archive(tmp_path / "b.tgz", "2.30.0")
    with pytest.raises(PlanError, match=r"is not Kubespray v2\.31\.0 as it was released"):
        make_ready(Source(archive=str(tmp_path / "b.tgz"), sha256=old), cache=tmp_path / "third")
    (tmp_path / "c.tgz").write_bytes(b"no archive")
    with pytest.raises(PlanError, match="is no archive of a release"):
        make_ready(Source(archive=str(tmp_path / "c.tgz"), sha256=hashlib.sha256(b"no archive").hexdigest()), cache=tmp_path / "fourth")


def _bundle(folder: Path, *, without: str = "") -> Source:
    """Make a bundle with the archive and a wheel, less one path; return what hosts.yaml says then."""
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
    return Source(bundle=str(folder), archive_url=url)


def test_with_a_bundle_nothing_else_is_reached(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Archive and wheels are those of the bundle, by the sum that its lock holds; no git and no index is asked."""
    source = _bundle(tmp_path / "bundle")
    archive = tmp_path / "bundle" / "files" / "example.com" / "archive" / "release.tar.gz"
    _released(monkeypatch, archive)
    ready = make_ready(source, cache=tmp_path / "cache")

    assert (ready.checkout / "galaxy.yml").is_file()
    assert not any("clone" in call for call in calls)
    assert "--no-index" in calls[-1]
    assert str(tmp_path / "bundle" / "wheels") in calls[-1]
    archive.write_bytes(archive.read_bytes() + b"more")
    with pytest.raises(PlanError, match="has sha256"):
        make_ready(source, cache=tmp_path / "other")


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("files", "holds no https://example.com/archive/release.tar.gz"),
        ("wheels", "holds no wheels"),
        ("files/example.com/archive/release.tar.gz", "the bundle lacks files/example.com/archive/release.tar.gz"),
        ("wheels/ansible.whl", "the bundle lacks wheels/ansible.whl"),
    ],
)
def test_what_a_bundle_lacks_is_named(tmp_path: Path, calls: list[list[str]], without: str, said: str) -> None:
    """And how to get it; nothing is asked for it elsewhere."""
    with pytest.raises(PlanError, match=said) as caught:
        make_ready(_bundle(tmp_path / "bundle", without=without), cache=tmp_path / "cache")

    assert "bundle lock" in caught.value.fix
    assert calls == []
    with pytest.raises(PlanError, match=r"nowhere/bundle\.lock\.yaml"):
        make_ready(Source(bundle=str(tmp_path / "nowhere")), cache=tmp_path / "cache")


def test_what_hosts_yaml_names_itself_wins_over_the_bundle(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of one's own needs only wheels."""
    mine = _checkout(tmp_path / "mine")
    monkeypatch.setenv(releases.FOLDER_VARIABLE, str(mine))
    source = _bundle(tmp_path / "bundle", without="files")

    assert make_ready(source, cache=tmp_path / "cache").checkout == mine
    assert str(tmp_path / "bundle" / "wheels") in calls[-1]


@pytest.mark.skipif(not os.environ.get("PRIMUS_KUBESPRAY_DIR"), reason="PRIMUS_KUBESPRAY_DIR names no checkout of Kubespray")
def test_the_pinned_tree_is_that_of_the_release(tmp_path: Path) -> None:
    """A real checkout, packed by tar, is known as the release."""
    folder = Path(os.environ["PRIMUS_KUBESPRAY_DIR"])
    archive = tmp_path / "kubespray.tgz"
    subprocess.run(["tar", "-czf", str(archive), "--exclude=.git", "-C", str(folder.parent), folder.name], timeout=120, check=True)

    assert releases.what_is_wrong(archive) == ""


def test_a_folder_is_used_as_it_is(tmp_path: Path, calls: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Given or by the environment; another version and a folder of something else are refused."""
    mine = _checkout(tmp_path / "mine")
    monkeypatch.setenv(releases.FOLDER_VARIABLE, str(mine))

    assert make_ready(Source(), cache=tmp_path / "cache").checkout == mine
    assert not any("clone" in call for call in calls)
    with pytest.raises(PlanError, match=r"is Kubespray v2\.29\.1"):
        make_ready(Source(folder=str(_checkout(tmp_path / "old", "2.29.1"))), cache=tmp_path / "cache")
    with pytest.raises(PlanError, match="no checkout of Kubespray"):
        make_ready(Source(folder=str(tmp_path)), cache=tmp_path / "cache")
