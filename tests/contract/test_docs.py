"""The documentation matches the program: examples, pictures, links, paths, commands and the built site."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from primus_bootstrap.cli.main import app
from primus_bootstrap.inventory.load import find_problems

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
# Files that the program or the reader creates, or that another project contains.
NOT_IN_REPOSITORY = {
    "inventory/NAME/hosts.yaml",
    "inventory/train",
    "inventory/sample/group_vars/all/offline.yml",
    "playbooks/boilerplate.yml",
    "playbooks/facts.yml",
    "roles/upgrade/pre-upgrade/defaults",
    "tests/integration/test_x_real.py",
    "tests/unit/test_x.py",
}
PICTURES = ("apply.svg", "failure.svg")
DOCS = sorted((ROOT / "docs").glob("*.md"))
_PATH = re.compile(
    r"(?<![\w/.~:-])((?:primus_bootstrap|engine|cli|launch|roles|tests|tools|playbooks|workloads|inventory)/[\w./-]*\w(?![\w<*{]))"
)
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def test_readme_example_validates(tmp_path: Path) -> None:
    """The hosts.yaml of the README has at most 12 lines and no problem."""
    (example,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "hosts.yaml"
    path.write_text(example, encoding="utf-8")

    assert len(example.splitlines()) <= 12
    assert find_problems(path) == ()


def test_pictures_are_current(tmp_path: Path) -> None:
    """The pictures equal the output of tools/screenshots.py."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tools" / "screenshots.py"), "--out", str(tmp_path)]
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)

    for name in PICTURES:
        assert (tmp_path / name).read_text() == (ROOT / "docs" / "images" / name).read_text(), "run tools/screenshots.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_root_pages_exist(page: Path) -> None:
    """Relative links outside docs/ name a file. mkdocs checks those inside."""
    targets = [target for target in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]

    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, *DOCS], ids=lambda page: page.name)
def test_paths_in_pages_exist(page: Path) -> None:
    """Each path exists in the repository or the package."""
    named = [
        path
        for path in _PATH.findall(page.read_text(encoding="utf-8"))
        if path not in NOT_IN_REPOSITORY and "/.primus" not in path and not path.startswith("roles/x/")
    ]

    assert [path for path in named if not (ROOT / path).exists() and not (ROOT / "primus_bootstrap" / path).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, *DOCS], ids=lambda page: page.name)
def test_commands_in_pages_exist(page: Path) -> None:
    """Every `primus-bootstrap` command in code has known verbs and options."""
    text = page.read_text(encoding="utf-8")
    code = [*re.findall(r"(?ms)^```[a-z]*\n(.*?)^```", text), *re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)]
    commands = [line for block in code for line in re.findall(r"(?m)^(?:\$ )?(?:\.venv/bin/)?primus-bootstrap ([^#\n|]*)", block)]

    assert [problem for line in commands if (problem := _command_problem(line.split()))] == []


def _command_problem(arguments: list[str]) -> str:
    """Return the first unknown word of a command line, or an empty string."""
    command = typer.main.get_command(app)
    depth = 0
    while isinstance(command, TyperGroup) and depth < len(arguments) and not arguments[depth].startswith("-"):
        found = command.commands.get(arguments[depth].strip("`,"))
        if found is None:
            return arguments[depth]
        command, depth = found, depth + 1
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    before_separator = itertools.takewhile(lambda word: word != "--", arguments[depth:])
    named = [word.strip("[]").split("=")[0] for word in before_separator if word.startswith(("-", "[-"))]
    return next((word for word in named if word not in options), "")


def test_site_builds_strictly(tmp_path: Path) -> None:
    """Every page is in the navigation, every link and anchor exists, and no page loads files from another server."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    build = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=300)

    assert build.returncode == 0, build.stderr
    external = re.compile(r"<(?:script|img|link(?! rel=\"canonical\"))[^>]*(?:src|href)=\"?https?://[^\s>\"]+")
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert [(page.name, found) for page in pages for found in external.findall(page.read_text(encoding="utf-8"))] == []


def test_changelog_fragments_compile() -> None:
    """Towncrier compiles every file of changelog.d."""
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "0"]
    draft = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md"]

    assert draft.returncode == 0, draft.stderr
    assert [path.name for path in fragments if not re.fullmatch(r"\+[\w-]+\.(added|changed|fixed|removed)\.md", path.name)] == []
    assert draft.stdout.count("\n- ") == len(fragments)
