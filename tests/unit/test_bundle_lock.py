"""A lock: resolved by apt itself, written so that it can be read again, and honest about what it does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.artifacts import BundleError, Lock, Locked, Need, Needs, Rendered, Target, Unknown, Wanted
from primus_bootstrap.bundle.lock import make_lock, not_covered
from primus_bootstrap.bundle.lock_file import lock_text, parse_lock, read_lock
from primus_bootstrap.bundle.web import file_path

if TYPE_CHECKING:
    from pathlib import Path

TARGET = Target("bookworm", "amd64")
OTHER = Target("trixie", "amd64")
SUM = "a" * 64
FILE = Need("file", "https://example.com/v1/tool-1.tar.gz", sha256=SUM, version="1")


def wanted(*needs: Need) -> tuple[Wanted, ...]:
    """Return the needs as if one role had them on one host."""
    return tuple(Wanted(need, ("role",), ("all",), ("host",)) for need in needs)


def make(needs: Needs, sources: Sources, folder: Path, before: Lock | None = None, **more: Any) -> tuple[Lock, list[str]]:
    """Lock, and return the lock and what was not resolved."""
    lock, unresolved = make_lock(needs, before or Lock(), sources=lambda _: sources, folder=folder / "cache", say=lambda _: None, **more)
    return lock, [one.what for one in unresolved]


def test_a_file_is_locked_by_the_sum_that_its_role_pins(tmp_path: Path) -> None:
    """Nothing is fetched for it. Without a sum and without TLS it is refused: whoever answers would be believed."""
    lock, unresolved = make(Needs(wanted(FILE, Need("file", "http://example.com/free")), ()), Sources(""), tmp_path)

    assert [(item.name, item.sha256, item.path) for item in lock.items] == [(FILE.name, SUM, "files/example.com/v1/tool-1.tar.gz")]
    assert unresolved == ["http://example.com/free"]
    assert lock.pin(FILE) == "pinned"


def test_a_changed_sum_or_version_is_not_locked() -> None:
    """A lock that was made for another file of the same name does not hold the new one."""
    lock = Lock((Locked("file", FILE.name, "1", FILE.name, SUM, 0, "files/x"),))

    assert lock.find(FILE) == lock.items[0]
    assert lock.find(Need("file", FILE.name, sha256="b" * 64, version="1")) is None
    assert lock.find(Need("file", FILE.name, sha256=SUM, version="2")) is None


def test_a_set_is_covered_by_one_that_holds_more_and_by_no_other_release() -> None:
    """Two sets that were resolved apart do not cover a host that needs both: apt was never asked whether they go together."""
    lock = Lock((), ((TARGET, frozenset({"a", "b"})), (TARGET, frozenset({"c"}))))

    assert lock.covers(TARGET, frozenset({"a"}))
    assert not lock.covers(TARGET, frozenset({"a", "c"}))
    assert not lock.covers(OTHER, frozenset({"a"}))


def test_what_is_not_known_is_not_covered() -> None:
    """A role whose needs could not be told keeps an inventory from counting as locked."""
    needs = Needs((), (), (Unknown("redis", ("r1",), "the release of these hosts is not stated", "state it"),))

    assert not_covered(needs, Lock()) == ("what the role redis fetches on r1: the release of these hosts is not stated",)


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    """All kinds come back, and the same lock has the same text."""
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
        ("[]", "is no lock"),
        ("schema: other/1", "is no lock"),
        ("schema: primus.bundle-lock/1", "cannot be read"),
        ("{", "cannot be read"),
    ],
)
def test_what_is_no_lock_is_refused(text: str, word: str) -> None:
    """The message names the file and how to get a new one."""
    with pytest.raises(BundleError, match=word) as refused:
        parse_lock(text, "bundle.lock.yaml")

    assert refused.value.fix


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x", "apt/../../x"])
def test_a_lock_cannot_write_outside_the_bundle(path: str) -> None:
    """A lock may come from somebody else."""
    text = lock_text(Lock((Locked("file", FILE.name, "1", FILE.name, SUM, 0, path),)))

    with pytest.raises(BundleError, match="leads out of the bundle"):
        parse_lock(text, "bundle.lock.yaml")


def test_files_lie_under_the_name_of_their_server() -> None:
    """Two servers may have the same path; a port or a login is no part of the name."""
    assert file_path("https://user@example.com:8443/a/b%20c.tar") == "files/example.com/a/b c.tar"
