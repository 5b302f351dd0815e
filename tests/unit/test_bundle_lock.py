"""A lock: resolved by apt itself, written so that it can be read again, and honest about what it does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.bundle.apt import Sources
from primus_bootstrap.bundle.lock import file_path, make_lock, not_covered
from primus_bootstrap.bundle.lock_file import lock_text, parse_lock, read_lock
from primus_bootstrap.bundle.values import BundleError, Lock, Locked, Need, Needs, Target, Unknown, Wanted
from tests.unit.bundle_rig import make_package, make_source

if TYPE_CHECKING:
    from pathlib import Path

TARGET = Target("bookworm", "amd64")
OTHER = Target("trixie", "amd64")
SUM = "a" * 64
FILE = Need("file", "https://example.com/v1/tool-1.tar.gz", sha256=SUM, version="1")


def wanted(*needs: Need) -> tuple[Wanted, ...]:
    """Return the needs as if one role had them on one host."""
    return tuple(Wanted(need, ("role",), ("all",), ("host",)) for need in needs)


def packages(target: Target, *names: str) -> Needs:
    """Return the need for packages, all on one host."""
    return Needs(wanted(*(Need("package", name, target) for name in names)), ((target, frozenset(names)),))


def make(needs: Needs, sources: Sources, folder: Path, before: Lock | None = None) -> tuple[Lock, list[str]]:
    """Lock, and return the lock and what was not resolved."""
    lock, unresolved = make_lock(needs, before or Lock(), sources=lambda _: sources, folder=folder / "cache", say=lambda _: None)
    return lock, [one.what for one in unresolved]


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


def test_a_file_is_locked_by_the_sum_that_its_role_pins(tmp_path: Path) -> None:
    """Without a sum it is refused: the first download would be believed, whatever it is."""
    lock, unresolved = make(
        Needs(wanted(FILE, Need("file", "https://example.com/free"), Need("image", "x/y:1")), ()), Sources(""), tmp_path
    )

    assert [(item.name, item.sha256, item.path) for item in lock.items] == [(FILE.name, SUM, "files/example.com/v1/tool-1.tar.gz")]
    assert unresolved == ["https://example.com/free", "x/y:1"]


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
    )
    lock = Lock(items, ((OTHER, frozenset({"redis"})),))
    text = lock_text(lock)
    read = parse_lock(text, "lock")

    assert set(read.items) == set(items)
    assert read.sets == lock.sets
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
