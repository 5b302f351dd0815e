"""Role `airgap`: copying the bundle, configuring apt to use the mirrors only, and verifying it."""

from __future__ import annotations

import hashlib
import tarfile
from typing import TYPE_CHECKING

import pytest
import yaml

from primus_bootstrap import content
from tests.unit.role_module import load_role_module

if TYPE_CHECKING:
    from pathlib import Path

store = load_role_module("airgap", "airgap_store")
effects = load_role_module("airgap", "airgap_effects")

OURS = "mirror+file:/etc/apt/primus-airgap/mirrors"


def digest(content: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(content).hexdigest()


def pack(archive: Path, **files: bytes) -> None:
    """Write an archive of files below `apt/`."""
    for name, data in files.items():
        (archive.parent / name).write_bytes(data)
    with tarfile.open(archive, "w") as target:
        for name in files:
            target.add(archive.parent / name, arcname=f"apt/{name}")


def test_file_is_stored_only_if_its_checksum_matches(tmp_path: Path) -> None:
    """A wrong checksum and an unknown file leave nothing behind. A stored file is readable by all."""
    pack(tmp_path / "batch.tar", good=b"good", bad=b"torn", stranger=b"x")
    sums = {"apt/good": digest(b"good"), "apt/bad": digest(b"whole")}

    wrong = store.unpack(tmp_path / "batch.tar", tmp_path / "srv", sums)

    assert wrong == ["apt/bad", "apt/stranger"]
    assert sorted(path.name for path in (tmp_path / "srv").rglob("*") if path.is_file()) == [store.MARK, "good"]
    assert (tmp_path / "srv" / "apt" / "good").stat().st_mode & 0o777 == 0o644
    assert store.missing(tmp_path / "srv", sums) == ["apt/bad"]


def test_foreign_folder_is_detected(tmp_path: Path) -> None:
    """A site's own mirror would lose its files. A mark identifies our copies and is not reported as surplus."""
    sums = {"apt/good": digest(b"good")}
    (tmp_path / "srv").mkdir()
    (tmp_path / "srv" / "theirs").write_bytes(b"x")

    assert store.foreign_files(tmp_path / "srv", store.unlisted(tmp_path / "srv", sums)) == "theirs"
    pack(tmp_path / "batch.tar", good=b"good")
    store.unpack(tmp_path / "batch.tar", tmp_path / "ours", sums)
    (tmp_path / "ours" / "former").write_bytes(b"x")
    assert store.unlisted(tmp_path / "ours", sums) == ["former"]
    assert store.foreign_files(tmp_path / "ours", ["former"]) == ""


def test_damaged_file_is_fetched_again_and_obsolete_file_removed(tmp_path: Path) -> None:
    """Files that the bundle no longer contains are removed; nothing else is."""
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt" / "a").write_bytes(b"whole and more")
    (tmp_path / "apt" / "former").write_bytes(b"former")
    sums = {"apt/a": digest(b"whole")}

    assert store.missing(tmp_path, sums) == ["apt/a"]
    assert store.remove_unlisted(tmp_path, sums) == ["apt/former"]
    assert (tmp_path / "apt" / "a").exists()


def test_setting_of_apt_is_written_last_and_removed_first() -> None:
    """An interrupted run leaves apt with one complete configuration."""
    path = content.roles_dir() / "airgap" / "tasks" / "configure.yml"
    write, remove = yaml.safe_load(path.read_text(encoding="utf-8"))

    assert write["block"][-1]["ansible.builtin.template"]["dest"] == "{{ _airgap_apt_conf }}"
    assert remove["loop"] == ["{{ _airgap_apt_conf }}", "{{ _airgap_folder }}"]


@pytest.mark.parametrize(
    ("status", "output", "verdict"),
    [
        (0, f"{OURS}/\n{OURS}/\n", "pass"),
        (0, f"{OURS}/\nhttp://mirror.example.com/debian/\n", "fail"),
        (0, "http://mirror.example.com/debian/\n", "fail"),
        (0, "", "fail"),
        (100, "E: broken", "unknown"),
        (None, "timed out", "unknown"),
    ],
)
def test_only_the_mirror_alone_passes(status: int | None, output: str, verdict: str) -> None:
    """A second source or no source fails. No answer from apt is unknown."""
    verdicts = effects.Verdicts("airgap", "n1")
    effects.check_sources(verdicts, OURS, status, output)

    assert [one["verdict"] for one in verdicts.records] == [verdict]


def test_fetched_package_is_compared_with_the_index(tmp_path: Path) -> None:
    """The smallest package is fetched. Other content fails; a time-out is unknown."""
    index = "Package: big\nVersion: 1\nSize: 9\nSHA256: x\n\nPackage: small\nVersion: 2\nSize: 3\nSHA256: " + digest(b"deb") + "\n"
    package = effects.smallest_package(index)
    (tmp_path / "small_2.deb").write_bytes(b"deb")

    verdicts = effects.Verdicts("airgap", "n1")
    effects.check_fetch(verdicts, package, tmp_path, 0, "")
    effects.check_fetch(verdicts, package, tmp_path, None, "late")
    (tmp_path / "small_2.deb").write_bytes(b"DEB")
    effects.check_fetch(verdicts, package, tmp_path, 0, "")
    effects.check_fetch(verdicts, package, tmp_path / "empty", 100, "E: gone")

    assert package["Package"] == "small"
    assert [one["verdict"] for one in verdicts.records] == ["pass", "unknown", "fail", "fail"]
    assert [one["reason"] for one in verdicts.records[1:]] == ["late", f"its checksum is {digest(b'DEB')}", "E: gone"]
