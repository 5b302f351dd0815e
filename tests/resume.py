"""`--rest`: skip tests that passed on the same code before, so that a long run continues after an interruption.

Each pass is recorded with its commit in the cache folder. It is valid until a file changes that can affect the test; documents and
other tests cannot. Without `--rest` the record is neither read nor written.
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
_RECORD = "passed.jsonl"
# Documents, and files that run tests; tools/molecule.sh handles roles/*/molecule.
_IRRELEVANT = re.compile(
    r"\.md$|^docs/|^\.ci/|^Makefile$|^\.config/molecule/|^roles/[^/]+/molecule/|^tools/molecule\.sh$|^tests/resume\.py$"
)
_HEAD = pytest.StashKey[str]()
_SKIPPED = pytest.StashKey[list[str]]()
_PHASES = pytest.StashKey[list[tuple[str, float]]]()


def matters(changed: str, test: str) -> bool:
    """Return whether a change of a file can affect a test; both are paths from the root."""
    if _IRRELEVANT.search(changed):
        return False
    # Helper modules of tests may be shared between folders. Test modules are not imported by others.
    return changed == test or not re.search(r"^tests/.*/test_[^/]*\.py$", changed)


def valid_passes(passes: Mapping[str, str], changed_since: Mapping[str, list[str] | None]) -> set[str]:
    """Return the tests whose recorded pass is still valid.

    Args:
        passes: Commit of the last pass, by test id.
        changed_since: Files that differ from each commit; None if unknown.
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
    """Return the commit of the tree, or None if it has uncommitted changes."""
    return str(_git("rev-parse", "HEAD")).strip() if _git("status", "--porcelain") == "" else None


@cache
def _changed_since(commit: str) -> list[str] | None:
    names = _git("diff", "--name-only", "--no-renames", commit, "HEAD")
    return None if names is None else names.splitlines()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rest`, which `make test-all` uses."""
    parser.addoption("--rest", action="store_true", help="skip tests that passed on the same code before, and record passes")


def pytest_configure(config: pytest.Config) -> None:
    """Determine the commit; passes cannot be recorded for a tree with uncommitted changes."""
    if not config.getoption("--rest"):
        return
    head = _committed()
    if head is None:
        raise pytest.UsageError(
            "--rest needs a tree without uncommitted changes, because passes are recorded by commit. fix: commit, or run without --rest"
        )
    config.stash[_HEAD] = head


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests whose recorded pass is still valid."""
    if _HEAD not in config.stash or not (record_file := cache_dir() / _RECORD).exists():
        return
    records = {record["test"]: record for record in map(json.loads, record_file.read_text(encoding="utf-8").splitlines())}
    passes = {test: record["commit"] for test, record in records.items()}
    valid = valid_passes(passes, {commit: _changed_since(commit) for commit in set(passes.values())})
    out = [item for item in items if item.nodeid in valid]
    items[:] = [item for item in items if item.nodeid not in valid]
    config.hook.pytest_deselected(items=out)
    skipped = [records[item.nodeid] for item in out]
    config.stash[_SKIPPED] = ["passed at {at} on {commit:.12} in {seconds} s: {test}".format_map(record) for record in skipped]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """List the deselected tests with time and commit of their pass."""
    return config.stash.get(_SKIPPED, [])


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Exit with 0 if all tests were deselected."""
    if _HEAD in session.config.stash and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record a test that passed, including its teardown."""
    report = yield
    phases = item.stash.setdefault(_PHASES, [])
    phases.append((report.outcome, report.duration))
    head = item.config.stash.get(_HEAD, None)
    # Compare again: files may have changed while the test ran.
    if call.when == "teardown" and head and {outcome for outcome, _ in phases} == {"passed"} and _committed() == head:
        record = {"test": item.nodeid, "commit": head, "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
        with (cache_dir() / _RECORD).open("a", encoding="utf-8") as record_file:
            record_file.write(json.dumps({**record, "seconds": round(sum(seconds for _, seconds in phases))}) + "\n")
    return report
