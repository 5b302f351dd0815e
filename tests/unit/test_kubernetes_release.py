"""Where the pinned release comes from, and that nothing else than that release is ever used."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.errors import PlanError
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.kubernetes import release as releases
from primus_bootstrap.kubernetes.release import Source, make_ready

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


def test_an_archive_is_checked(tmp_path: Path, calls: list[list[str]]) -> None:
    """Its sum first, then what it says it is; a folder of wheels keeps pip off any index."""
    total = _archive(tmp_path / "a.tgz")
    ready = make_ready(Source(archive=str(tmp_path / "a.tgz"), sha256=total, packages="/wheels"), cache=tmp_path / "cache")

    assert (ready.checkout / "galaxy.yml").is_file()
    assert "--no-index" in calls[-1]
    with pytest.raises(PlanError, match="expected 0000"):
        make_ready(Source(archive=str(tmp_path / "a.tgz"), sha256="0" * 64), cache=tmp_path / "other")
    old = _archive(tmp_path / "b.tgz", "2.30.0")
    with pytest.raises(PlanError, match=r"is Kubespray v2\.30\.0"):
        make_ready(Source(archive=str(tmp_path / "b.tgz"), sha256=old), cache=tmp_path / "third")


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


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    """The last line of what it said, and what to do."""
    with pytest.raises(PlanError, match="cannot fetch it: no such place") as caught:
        releases._call(["sh", "-c", "echo a >&2; echo no such place >&2; exit 3"], 10, "fetch it", "look")
    with pytest.raises(PlanError, match="cannot fetch it: exit status 3"):
        releases._call(["sh", "-c", "exit 3"], 10, "fetch it", "look")
    with pytest.raises(PlanError, match="cannot fetch it"):
        releases._call([str(tmp_path / "nobody")], 10, "fetch it", "look")

    assert caught.value.fix == "look"
