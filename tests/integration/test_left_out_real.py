"""Test files whose area did not change are left out of a run of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("one/test_redis", "one/test_slurm", "one/test_rest", "two/test_slurm_client")
AREAS = """
ALWAYS = ("shared.py",)
def area_of(test):
    return ("roles/redis",) if "redis" in test else ("roles/slurm",) if "slurm" in test else ()
"""


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with three test files that have an area and one without. The last commit changed the role redis."""
    repo = tmp_path_factory.mktemp("repo")
    copied = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("tests/changed.py", "tests/left_out.py", "tools/changed.sh")}
    test = "def test_it(): pass\n"
    files = {**copied, "tests/areas.py": AREAS, **{f"tests/{name}.py": test for name in NAMES}}
    for name, text in files.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text, encoding="utf-8")
    (repo / "tools/changed.sh").chmod(0o755)
    (repo / ".gitignore").write_text("__pycache__\n.pytest_cache\n", encoding="utf-8")
    git = ["git", "-C", str(repo), "-c", "user.name=t", "-c", "user.email=t@t"]
    for words in (["init", "--quiet", "--initial-branch=main"], ["add", "."], ["commit", "--quiet", "--message", "one"]):
        subprocess.run([*git, *words], check=True, timeout=60)
    (repo / "roles/redis").mkdir(parents=True)
    (repo / "roles/redis/main.yml").touch()
    subprocess.run([*git, "add", "."], check=True, timeout=60)
    subprocess.run([*git, "commit", "--quiet", "--message", "two"], check=True, timeout=60)
    return repo


def run(repo: Path, *words: str, all_files: str = "") -> subprocess.CompletedProcess[str]:
    """Run pytest in the repository."""
    environment = {**os.environ, "PYTEST_ADDOPTS": "", "PYTEST_DEBUG_TEMPROOT": str(repo.parent), "PYTHONPATH": str(repo)}
    environment["PRIMUS_TEST_ALL_FILES"] = all_files
    command = [sys.executable, "-m", "pytest", "-p", "tests.left_out", "-p", "no:cacheprovider", *words]
    return subprocess.run(command, cwd=repo, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize(
    ("words", "passed", "left_out"),
    [
        (("tests/one",), "2 passed", True),
        (("tests/one", "-n", "2"), "2 passed", True),
        (("tests/one/test_slurm.py",), "1 passed", False),
        (("tests/one/test_slurm.py::test_it", "tests/one/test_rest.py"), "2 passed", False),
        (("tests/two",), "no tests ran", True),
    ],
)
def test_only_affected_files_run(repo: Path, words: tuple[str, ...], passed: str, *, left_out: bool) -> None:
    """Files without an area and files that are named run; the others are listed. A run without any file passes."""
    done = run(repo, *words)

    assert (done.returncode, passed in done.stdout) == (0, True), done.stdout + done.stderr
    assert ("1 files left out, because nothing that they test has changed" in done.stdout) is left_out


def test_no_file_is_left_out_if_all_are_wanted(repo: Path) -> None:
    """On main the last commit is only one of those that were tested together."""
    done = run(repo, "tests/one", "tests/two", all_files="1")

    assert "4 passed" in done.stdout, done.stdout + done.stderr
