"""Test the lock: its entries, its file format, and missing entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import BundleError, Lock, Locked, Need, Needs, Rendered, Requirement, Target, Unknown
from primus_bootstrap.bundle.lock import make_lock, missing_from_lock
from primus_bootstrap.bundle.lock_file import lock_text, parse_lock, read_lock
from primus_bootstrap.bundle.web import file_path

if TYPE_CHECKING:
    from pathlib import Path

TARGET = Target("bookworm", "amd64")
OTHER = Target("trixie", "amd64")
SUM = "a" * 64
FILE = Need("file", "https://example.com/v1/tool-1.tar.gz", sha256=SUM, version="1")


def needs_of(*needs: Need) -> tuple[Requirement, ...]:
    """Return these needs for one role on one host."""
    return tuple(Requirement(need, ("role",), ("all",), ("host",)) for need in needs)


def lock_needs(needs: Needs, sources: Sources, folder: Path, before: Lock | None = None, **more: Any) -> tuple[Lock, list[str]]:
    """Return the lock and the unresolved needs."""
    lock, unresolved = make_lock(
        needs, before or Lock(), sources=lambda _: sources, folder=folder / "cache", progress=lambda _: None, **more
    )
    return lock, [one.what for one in unresolved]


def test_file_is_locked_with_the_checksum_of_its_role(tmp_path: Path) -> None:
    """A pinned file is not downloaded. A file without checksum and TLS is refused."""
    lock, unresolved = lock_needs(Needs(needs_of(FILE, Need("file", "http://example.com/free")), ()), Sources(""), tmp_path)

    assert [(item.name, item.sha256, item.path) for item in lock.items] == [(FILE.name, SUM, "files/example.com/v1/tool-1.tar.gz")]
    assert unresolved == ["http://example.com/free"]
    assert lock.pin(FILE) == "pinned"


def test_changed_checksum_or_version_is_not_locked() -> None:
    """An entry with another checksum or version does not satisfy a need."""
    lock = Lock((Locked("file", FILE.name, "1", FILE.name, SUM, 0, "files/x"),))

    assert lock.find(FILE) == lock.items[0]
    assert lock.find(Need("file", FILE.name, sha256="b" * 64, version="1")) is None
    assert lock.find(Need("file", FILE.name, sha256=SUM, version="2")) is None


def test_set_is_covered_by_a_larger_set_of_the_same_release() -> None:
    """Two separate sets do not cover their union, because apt did not resolve them together."""
    lock = Lock((), ((TARGET, frozenset({"a", "b"})), (TARGET, frozenset({"c"}))))

    assert lock.covers(TARGET, frozenset({"a"}))
    assert not lock.covers(TARGET, frozenset({"a", "c"}))
    assert not lock.covers(OTHER, frozenset({"a"}))


def test_unknown_needs_are_missing() -> None:
    """A role with unknown downloads is missing from the lock."""
    needs = Needs((), (), (Unknown("redis", ("r1",), "the release of these hosts is not stated", "state it"),))

    assert missing_from_lock(needs, Lock()) == ("the downloads of the role redis on r1: the release of these hosts is not stated",)


def test_lock_is_written_and_read(tmp_path: Path) -> None:
    """All kinds are read back, and equal locks have the same text."""
    items = (
        Locked("file", FILE.name, "1", FILE.name, SUM, 0, "files/example.com/tool"),
        Locked("package", "redis", "5:7.0", "http://x/redis.deb", "b" * 64, 7, "apt/trixie-amd64/redis_5%3a7.0_amd64.deb", OTHER),
        Locked("wheel", "juicefs==1", "1", "https://x/j.whl", "c" * 64, 0, "wheels/j.whl"),
        Locked("image", "quay.io/a/b:1", "", "quay.io/a/b:1", "d" * 64, 0, "", pinned=False),
    )
    rendered = (Rendered("queue", "e" * 64, ("quay.io/a/b:1",)),)
    lock = Lock(items, ((OTHER, frozenset({"redis"})),), (("cp311-x86_64", frozenset({"a==1", "b==2"})),), rendered)
    text = lock_text(lock)
    read = parse_lock(text, "lock")

    assert set(read.items) == set(items)
    assert (read.sets, read.wheel_sets, read.charts) == (lock.sets, lock.wheel_sets, lock.charts)
    assert lock_text(read) == text
    assert read_lock(tmp_path / "absent") == Lock()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[]", "is not a lock file"),
        ("schema: other/1", "is not a lock file"),
        ("schema: primus.bundle-lock/1", "is not a valid lock file"),
        ("{", "is not a valid lock file"),
    ],
)
def test_invalid_lock_file_is_refused(text: str, word: str) -> None:
    """The error names the file, and the fix gives the command."""
    with pytest.raises(BundleError, match=word) as refused:
        parse_lock(text, "bundle.lock.yaml")

    assert refused.value.fix


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x", "apt/../../x"])
def test_path_outside_of_the_bundle_is_refused(path: str) -> None:
    """A lock file may come from another person."""
    text = lock_text(Lock((Locked("file", FILE.name, "1", FILE.name, SUM, 0, path),)))

    with pytest.raises(BundleError, match="is outside of the bundle"):
        parse_lock(text, "bundle.lock.yaml")


def test_path_of_a_file_starts_with_its_server() -> None:
    """Port and credentials are not part of the path."""
    assert file_path("https://user@example.com:8443/a/b%20c.tar") == "files/example.com/a/b c.tar"
