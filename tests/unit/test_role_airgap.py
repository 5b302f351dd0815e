"""What the role `airgap` does on hosts: a copy of a bundle that is never torn, one source for apt, and a proof that is not fooled."""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

store = load_role_module("airgap", "airgap_store")
sources = load_role_module("airgap", "airgap_sources")
effects = load_role_module("airgap", "airgap_effects")

OURS = "mirror+file:/etc/apt/primus-airgap/mirrors"


def digest(content: bytes) -> str:
    """Return a sum."""
    return hashlib.sha256(content).hexdigest()


def pack(archive: Path, **files: bytes) -> None:
    """Write an archive of files below `apt/`."""
    for name, content in files.items():
        (archive.parent / name).write_bytes(content)
    with tarfile.open(archive, "w") as target:
        for name in files:
            target.add(archive.parent / name, arcname=f"apt/{name}")


def test_a_file_gets_its_name_only_with_its_sum(tmp_path: Path) -> None:
    """A file with another sum, and one that nobody asked for, leave nothing behind; the right one is readable by all."""
    pack(tmp_path / "batch.tar", good=b"good", bad=b"torn", stranger=b"x")
    sums = {"apt/good": digest(b"good"), "apt/bad": digest(b"whole")}

    wrong = store.unpack(tmp_path / "batch.tar", tmp_path / "srv", sums)

    assert wrong == ["apt/bad", "apt/stranger"]
    assert sorted(path.name for path in (tmp_path / "srv").rglob("*") if path.is_file()) == [store.MARK, "good"]
    assert (tmp_path / "srv" / "apt" / "good").stat().st_mode & 0o777 == 0o644
    assert store.lacking(tmp_path / "srv", sums) == ["apt/bad"]


def test_a_folder_of_somebody_elses_is_known_until_it_is_ours(tmp_path: Path) -> None:
    """A site's own mirror would lose its files; of a copy that was begun by us, the mark says so, and is no surplus itself."""
    sums = {"apt/good": digest(b"good")}
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv" / "theirs").write_bytes(b"x")

    assert store.foreign(tmp_path / "srv", store.surplus(tmp_path / "srv", sums)) == "theirs"
    pack(tmp_path / "batch.tar", good=b"good")
    store.unpack(tmp_path / "batch.tar", tmp_path / "ours", sums)
    (tmp_path / "ours" / "former").write_bytes(b"x")
    assert store.surplus(tmp_path / "ours", sums) == ["former"]
    assert store.foreign(tmp_path / "ours", ["former"]) == ""


def test_a_damaged_file_lacks_and_a_former_one_goes(tmp_path: Path) -> None:
    """What was appended to is to be sent again; what the bundle holds no more is removed, and nothing else."""
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt" / "a").write_bytes(b"whole and more")
    (tmp_path / "apt" / "former").write_bytes(b"former")
    sums = {"apt/a": digest(b"whole")}

    assert store.lacking(tmp_path, sums) == ["apt/a"]
    assert store.tidy(tmp_path, sums) == ["apt/former"]
    assert (tmp_path / "apt" / "a").exists()


def files_of(folder: Path) -> list[dict[str, str]]:
    """Return what apt is to read, the switch last."""
    return [{"path": str(folder / "index" / "Packages"), "content": "Package: a\n"}, {"path": str(folder / "switch"), "content": "on\n"}]


def test_the_switch_is_written_last_and_removed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that dies in between leaves apt with a whole source or with its own ones."""
    placed: list[str] = []
    place = sources.place

    def dying(path: Path, content: str) -> None:
        if placed:
            raise OSError(28, "no space left")
        placed.append(path.name)
        place(path, content)

    monkeypatch.setattr(sources, "place", dying)
    with pytest.raises(OSError, match="no space left"):
        sources.bring(files_of(tmp_path), check=False)

    assert placed == ["Packages"]
    assert not (tmp_path / "switch").exists()


def test_bringing_twice_changes_nothing_and_withdrawing_leaves_nothing(tmp_path: Path) -> None:
    """Check mode only says what would change."""
    assert len(sources.bring(files_of(tmp_path), check=True)) == 2
    assert not list(tmp_path.iterdir())
    assert len(sources.bring(files_of(tmp_path), check=False)) == 2
    assert sources.bring(files_of(tmp_path), check=False) == []
    assert len(sources.withdraw(tmp_path / "switch", tmp_path / "index", check=True)) == 2
    assert len(sources.withdraw(tmp_path / "switch", tmp_path / "index", check=False)) == 2
    assert not list(tmp_path.iterdir())
    assert sources.withdraw(tmp_path / "switch", tmp_path / "index", check=False) == []


@pytest.mark.parametrize(
    ("status", "said", "verdict"),
    [
        (0, f"{OURS}/\n{OURS}/\n", "pass"),
        (0, f"{OURS}/\nhttp://mirror.example.com/debian/\n", "fail"),
        (0, "http://mirror.example.com/debian/\n", "fail"),
        (0, "", "fail"),
        (100, "E: broken", "unknown"),
        (None, "timed out", "unknown"),
    ],
)
def test_only_our_source_alone_passes(status: int | None, said: str, verdict: str) -> None:
    """One more source fails, none at all fails, and an apt that does not answer is unknown."""
    assert effects.judge_sources("n1", OURS, status, said)["verdict"] == verdict


def test_a_package_that_was_fetched_is_compared_with_the_index(tmp_path: Path) -> None:
    """The smallest one is asked for; another content fails although apt ended well, and no answer in time is unknown."""
    index = "Package: big\nVersion: 1\nSize: 9\nSHA256: x\n\nPackage: small\nVersion: 2\nSize: 3\nSHA256: " + digest(b"deb") + "\n"
    package = effects.smallest(index)
    (tmp_path / "small_2.deb").write_bytes(b"deb")

    assert package["Package"] == "small"
    assert effects.judge_fetch("n1", package, tmp_path, 0, "")["verdict"] == "pass"
    assert effects.judge_fetch("n1", package, tmp_path, None, "late")["verdict"] == "unknown"
    (tmp_path / "small_2.deb").write_bytes(b"DEB")
    assert effects.judge_fetch("n1", package, tmp_path, 0, "")["verdict"] == "fail"
    assert effects.judge_fetch("n1", package, tmp_path / "empty", 100, "E: gone")["verdict"] == "fail"
