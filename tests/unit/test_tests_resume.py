"""`--rest` of the tests themselves: which pass still holds after which change, and what a cut-off run leaves to the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.resume import matters, still_hold

ROOT = Path(__file__).parents[2]
LAB = "tests/lab/test_apply.py"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("roles/slurm/tasks/main.yml", True),
        ("primus_bootstrap/engine/run.py", True),
        ("constraints.txt", True),
        ("tests/conftest.py", True),
        ("tests/lab/lab_rig.py", True),
        (LAB, True),
        ("tests/lab/test_probe.py", False),
        ("tests/unit/slurm_rig.py", True),
        ("tests/kubernetes/fake_nodes.py", True),
        ("docs/slurm.md", False),
        ("roles/slurm/README.md", False),
        ("roles/slurm/molecule/default/verify.yml", False),
        ("Makefile", False),
    ],
)
def test_what_can_matter_to_a_test(changed: str, *, expected: bool) -> None:
    """Code and what tests share does; text, other tests and Molecule's scenarios do not."""
    assert matters(changed, LAB) is expected


def test_a_pass_holds_on_code_that_is_known_to_be_the_same() -> None:
    """A commit that nobody knows any more proves nothing."""
    passes = {f"{LAB}::test_a": "same", f"{LAB}::test_b": "other", f"{LAB}::test_c": "gone"}
    changed: dict[str, list[str] | None] = {"same": ["README.md"], "other": ["roles/x/tasks/main.yml"], "gone": None}

    assert still_hold(passes, changed) == {f"{LAB}::test_a"}


def test_what_passed_is_left_out_of_the_next_run_until_code_changes(tmp_path: Path) -> None:
    """A run notes its passes by commit; the next one runs what failed; a change of code runs all again; a dirty tree is refused."""
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
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTEST_ADDOPTS": ""}

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
    assert "--rest wants a committed tree" in dirty
    assert run().startswith("0: 2 passed")
