"""Leave out the test files whose area did not change (tests/areas.py). `--all-faults` runs them, and so does their name as an argument.

With PRIMUS_TEST_ALL_FILES=1 no file is left out: several commits may have reached main since the last run there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.changed import ROOT, changed_files, files_with_area, unaffected_files

_LEFT_OUT = pytest.StashKey[frozenset[Path]]()


def pytest_configure(config: pytest.Config) -> None:
    """Determine which files of the tested folders are left out. A file that is named on the command line runs."""
    if sent := getattr(config, "workerinput", None):  # Decided by the main process, so that all processes collect the same tests.
        config.stash[_LEFT_OUT] = frozenset(map(Path, sent["left_out"]))
        return
    named = {(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.args}
    all_run = config.getoption("--all-faults", default=False) or os.environ.get("PRIMUS_TEST_ALL_FILES") == "1"
    files = [file for file in files_with_area() if named & {*(ROOT / file).parents} and not all_run]
    config.stash[_LEFT_OUT] = frozenset(ROOT / file for file in unaffected_files(files, changed_files() if files else None)) - named


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Send the files to a process of pytest-xdist."""
    node.workerinput["left_out"] = [str(file) for file in node.config.stash[_LEFT_OUT]]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files whose area did not change."""
    return True if collection_path in config.stash[_LEFT_OUT] else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """List the files that are left out."""
    names = sorted(file.stem for file in config.stash[_LEFT_OUT])
    words = "files left out, because nothing that they test has changed (tests/areas.py; --all-faults and `make test-all` run them)"
    return [f"{len(names)} {words}: {' '.join(names)}"] if names else []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Exit with 0 if all files are left out."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash[_LEFT_OUT]:
        session.exitstatus = pytest.ExitCode.OK
