"""The documentation matches the program: the example validates, the pictures are current, links and site are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from primus_bootstrap.inventory.load import find_problems

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PICTURES = ("apply.svg", "failure.svg")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def test_readme_example_validates(tmp_path: Path) -> None:
    """The hosts.yaml of the README has at most 12 lines and no problem."""
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "hosts.yaml"
    path.write_text(example, encoding="utf-8")

    assert len(example.splitlines()) <= 12
    assert find_problems(path) == ()


def test_pictures_are_current(tmp_path: Path) -> None:
    """The pictures are what tools/screenshots.py draws; after a change of the view, run it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tools" / "screenshots.py"), "--out", str(tmp_path)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)

    for name in PICTURES:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / "images" / name).read_text(), "run tools/screenshots.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_root_pages_exist(page: Path) -> None:
    """Relative links outside docs/ name a file; mkdocs checks those inside."""
    targets = [target for target in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]

    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_site_builds_strictly(tmp_path: Path) -> None:
    """Every page is in the navigation, every link and anchor exists, and no page loads anything from another server."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=300)

    assert built.returncode == 0, built.stderr
    loads = re.compile(r"<(?:script|img|link(?! rel=\"canonical\"))[^>]*(?:src|href)=\"?https?://[^\s>\"]+")
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert [(page.name, found) for page in pages for found in loads.findall(page.read_text(encoding="utf-8"))] == []


def test_changelog_fragments_compile() -> None:
    """Towncrier reads every file of changelog.d."""
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "0"]
    draft = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]

    assert draft.returncode == 0, draft.stderr
    assert [path.name for path in fragments if not re.fullmatch(r"\+[\w-]+\.(added|changed|fixed|removed)\.md", path.name)] == []
    assert draft.stdout.count("\n- ") == len(fragments)
