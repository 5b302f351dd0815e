"""Every `primus-cli` command of the manual and of the help can be typed: its options, its task and the task's arguments are accepted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from primus_bootstrap.launch.commandline import main, usage
from primus_bootstrap.launch.plugins.plugin_discovery import plugin_tasks, sources
from primus_bootstrap.launch.settings import parser
from primus_bootstrap.launch.tasks import Request, find_task

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_COMMAND = re.compile(r"^\s*(?:\$ )?(primus-cli \S.*)$", re.MULTILINE)
# What follows a command on its line: a description after two spaces, a comment, or the rest of a text that is left out.
_END = re.compile(r"\s{2,}|\s#|…|\s\.\.\.|\s\[")
# Placeholders of a help text.
_SKIPPED = re.compile(r"\b(?:VERB|TASK|RUNTIME|NAME)\b|<|\|")


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text with its place: code blocks of the manual, and the help."""
    for path in sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "workloads/README.md"]):
        for block in re.findall(r"^```[a-z]*\n(.*?)^```", path.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            yield str(path.relative_to(ROOT)), block
    yield "primus-cli --help", usage.text(parser.CommandLine())
    for verb, text in usage.VERBS.items():
        yield f"primus-cli {verb} --help", text


def commands() -> list[tuple[str, str]]:
    """Return each command with its place."""
    found = [(place, _END.split(line)[0].strip()) for place, text in texts() for line in _COMMAND.findall(text)]
    return [(place, command) for place, command in dict.fromkeys(found) if " " in command and not _SKIPPED.search(command)]


def write_plugins(folder: Path) -> None:
    """Write the plug-ins of the manual into a folder."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/primus-cli.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    folder.mkdir()
    for number, block in enumerate(block for block in blocks if "@task(" in block):
        (folder / f"plugin_{number}.py").write_text(block)


def test_many_commands_are_found() -> None:
    """The search works."""
    assert len(commands()) > 30


@pytest.mark.parametrize(("place", "command"), commands())
def test_a_printed_command_can_be_typed(place: str, command: str, tmp_path: Path) -> None:
    """Files of the user exist or not; everything else is checked as in a run."""
    line = parser.parse(shlex.split(command)[1:], {})
    verb = line.words[0] if line.words else ""
    if not line.runtimes:
        assert verb in {*main._PROGRAMS, *usage.VERBS} or line.replay or "--help" in line.given, place
        return
    if not line.words or any(item.path in ("direct.script", "direct.plugin") for item in line.flags):
        return  # the words belong to a program of the user
    write_plugins(tmp_path / "primus_plugins")
    task, arguments = find_task(line.words, plugin_tasks(sources((), tmp_path)))
    replay = [index for index, word in enumerate(arguments) if word in ("--replay", "--strict", "--help")]
    if task.check and not replay:
        task.check(Request(arguments, "", lambda: ROOT / "workloads", cwd=tmp_path, find=lambda _: None))
