"""`--rest` of the tests: which passes remain valid after a change or an interrupted run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_passed_tests_are_skipped_until_the_code_changes(tmp_path: Path) -> None:
    """Passes are stored by commit; failed tests run again. A dirty tree is refused."""
    repo = tmp_path / "repo"
    (repo / "tests").mkdir(parents=True)
    for name in ("resume.py", "__init__.py"):
        source = ROOT / "tests" / name
        (repo / "tests" / name).write_text(source.read_text(encoding="utf-8") if source.exists() else "", encoding="utf-8")
    (repo / ".gitignore").write_text("__pycache__\n.pytest_cache\nlucky\n", encoding="utf-8")
    (repo / "code.py").write_text("", encoding="utf-8")
    (repo / "tests/test_it.py").write_text(
        "import pathlib\ndef test_good(): pass\ndef test_luck(): assert pathlib.Path('lucky').exists()\n", encoding="utf-8"
    )
    # With folders of its own for temporary files, pytest does not spend time on those of earlier sessions.
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTEST_DEBUG_TEMPROOT": str(tmp_path), "PYTEST_ADDOPTS": ""}
    environment = {**os.environ, **own}

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(repo), "-c", "user.name=t", "-c", "user.email=t@t", *words], check=True, timeout=60)

    def run() -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.resume", "--rest", "tests"]
        done = subprocess.run(command, cwd=repo, env=environment, capture_output=True, text=True, check=False, timeout=120)
        return f"{done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1]}"

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    first, second = run(), run()
    (repo / "lucky").touch()
    third, fourth = run(), run()
    (repo / "code.py").write_text("changed = True\n", encoding="utf-8")
    dirty = run()
    git("commit", "--quiet", "--all", "--message", "two")

    assert first.startswith("1: 1 failed, 1 passed")
    assert second.startswith("1: 1 failed, 1 deselected")
    assert third.startswith("0: 1 passed, 1 deselected")
    assert fourth.startswith("0: 2 deselected")
    assert "--rest needs a tree without uncommitted changes" in dirty
    assert run().startswith("0: 2 passed")
