"""`--rest`: leave out what has passed on this code before, so that a run of hours which was cut off goes on where it was.

Each pass of a committed tree is a line of a file in the cache folder. It holds until a file changes that could matter to that test;
text and other tests do not. Without `--rest` nothing is read or written.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.lab.machine import cache_dir

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

ROOT = Path(__file__).parent.parent
_BOOK = "passed.jsonl"
# Text, and what runs or judges tests rather than being tested; roles/*/molecule is tools/molecule.sh's.
_UNSEEN = re.compile(r"\.md$|^docs/|^\.ci/|^Makefile$|^\.config/molecule/|^roles/[^/]+/molecule/|^tools/molecule\.sh$|^tests/resume\.py$")
_HEAD = pytest.StashKey[str]()
_LEFT_OUT = pytest.StashKey[list[str]]()
_SEEN = pytest.StashKey[list[tuple[str, float]]]()


def matters(changed: str, test: str) -> bool:
    """Return whether a change of a file could change what a test finds; both are paths from the root."""
    if _UNSEEN.search(changed):
        return False
    # What tests share may be shared across folders; a file of tests is imported by none that --rest is for.
    return changed == test or not re.search(r"^tests/.*/test_[^/]*\.py$", changed)


def still_hold(passes: Mapping[str, str], changed_since: Mapping[str, list[str] | None]) -> set[str]:
    """Return the tests whose pass still holds.

    Args:
        passes: The commit on which each test passed last, by its id.
        changed_since: The files that differ from each commit now; None where that cannot be told.
    """
    found = set()
    for test, commit in passes.items():
        changed = changed_since.get(commit)
        if changed is not None and not any(matters(file, test.partition("::")[0]) for file in changed):
            found.add(test)
    return found


def _git(*words: str) -> str | None:
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout if done.returncode == 0 else None


def _committed() -> str | None:
    """Return the commit that the tree is, or None where it has changes of its own."""
    return str(_git("rev-parse", "HEAD")).strip() if _git("status", "--porcelain") == "" else None


@cache
def _changed_since(commit: str) -> list[str] | None:
    names = _git("diff", "--name-only", "--no-renames", commit, "HEAD")
    return None if names is None else names.splitlines()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that `make test-all` gives."""
    parser.addoption("--rest", action="store_true", help="leave out what has passed on this code before, and note what passes now")


def pytest_configure(config: pytest.Config) -> None:
    """Learn which commit this is; a tree with changes of its own has no name, so that nothing can be noted of it."""
    if not config.getoption("--rest"):
        return
    head = _committed()
    if head is None:
        raise pytest.UsageError("--rest wants a committed tree: a pass is noted by its commit. fix: commit, or run without --rest")
    config.stash[_HEAD] = head


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests whose pass still holds."""
    if _HEAD not in config.stash or not (book := cache_dir() / _BOOK).exists():
        return
    notes = {note["test"]: note for note in map(json.loads, book.read_text(encoding="utf-8").splitlines())}
    passes = {test: note["commit"] for test, note in notes.items()}
    held = still_hold(passes, {commit: _changed_since(commit) for commit in set(passes.values())})
    out = [item for item in items if item.nodeid in held]
    items[:] = [item for item in items if item.nodeid not in held]
    config.hook.pytest_deselected(items=out)
    left_out = [notes[item.nodeid] for item in out]
    config.stash[_LEFT_OUT] = ["passed at {at} on {commit:.12} in {seconds} s: {test}".format_map(note) for note in left_out]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Say what is left out, and since when it has passed."""
    return config.stash.get(_LEFT_OUT, [])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Call it a success when nothing is left to run."""
    if _HEAD in session.config.stash and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note a test that passed, the end of its fixtures included."""
    report = yield
    seen = item.stash.setdefault(_SEEN, [])
    seen.append((report.outcome, report.duration))
    head = item.config.stash.get(_HEAD, None)
    # Somebody may have changed files while it ran.
    if call.when == "teardown" and head and {outcome for outcome, _ in seen} == {"passed"} and _committed() == head:
        note = {"test": item.nodeid, "commit": head, "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
        with (cache_dir() / _BOOK).open("a", encoding="utf-8") as book:
            book.write(json.dumps({**note, "seconds": round(sum(seconds for _, seconds in seen))}) + "\n")
    return report
