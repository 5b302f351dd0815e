"""Every command that a message prints can be typed: the command line accepts it, and it names the user's hosts.yaml."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.main import get_command

from primus_bootstrap.cli.main import app
from primus_bootstrap.cli.printed_commands import INVENTORY_VERBS, OTHER_VERBS, with_inventory

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
# Values in messages that are the path of hosts.yaml.
_PATHS = ("{short(cluster.path)}", "{short(file)}", "{short(target)}", "{hosts_file}", "{context.display_path}", "{path}")
FILE = Path("/clusters/blue/hosts.yaml")
# The end of a command in a sentence.
_END = re.compile(r"[`;,|()\n]|: |\.(?:\s|$)|\s(?:and|or|then|to|lists|names|prints|writes|repairs|again|on|by|that|is|was|first)\b|['\"]$")
# typer has a copy of click, and exports only subclasses of its error.
_UsageError: Any = typer.BadParameter.__base__
_BEGIN = "primus-bootstrap "
# What files say about their origin, and the name of the program in a sentence.
_NOT_TYPED = re.compile(r"[Ww]ritten by|[Gg]enerated .*by|Imported from|[Cc]reated by|with that of|version of primus-bootstrap")


def command_at(words: list[str]) -> tuple[Any, list[str], list[str]] | None:
    """Return the verb that the words start with, its name and the remaining words; None if there is no such verb."""
    command: Any = get_command(app)
    name: list[str] = []
    while hasattr(command, "commands"):
        found = command.commands.get(words[len(name)]) if len(words) > len(name) else None
        if found is None:
            return None
        name.append(words[len(name)])
        command = found
    return command, name, words[len(name) :]


def verbs(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name of each verb and its command."""
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from verbs(inner, f"{name} {word}".strip())
    else:
        yield name, command


def test_the_verbs_with_an_inventory_are_known() -> None:
    """The table of verbs is that of the command line."""
    found, others = {}, set()
    for name, command in verbs(get_command(app)):
        options = [param for param in command.params if param.name in ("hosts", "inventory", "words")]
        if options:
            found[name] = "" if options[0].param_type_name == "argument" else "-i"
        else:
            others.add(" ".join(name.split()[:2]))

    assert found == INVENTORY_VERBS
    assert others == set(OTHER_VERBS)


def messages() -> Iterator[tuple[str, str]]:
    """Yield each text of the program and the roles that contains a command, with its place; values in it are `x1`."""
    for path in sorted([*(ROOT / "primus_bootstrap").rglob("*.py"), *(ROOT / "roles").rglob("*.py")]):
        if "molecule" not in path.parts and _BEGIN in (source := path.read_text(encoding="utf-8")):
            for number, text in _texts(source):
                yield f"{path.relative_to(ROOT)}:{number}", text
    for path in sorted([*(ROOT / "roles").rglob("*.yml"), *(ROOT / "roles").rglob("*.sh"), *(ROOT / "playbooks").rglob("*.yml")]):
        if not {"molecule", "meta", "defaults"} & set(path.parts):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                if _BEGIN in line and not line.strip().startswith("#"):
                    yield f"{path.relative_to(ROOT)}:{number}", re.sub(r"' ~ [^~]+ ~ '|' ~ \w+|\{\{.*?\}\}", "x1", line)


def _texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module, without docstrings."""
    tree = ast.parse(source)
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        parent = parents.get(node)
        if isinstance(node, ast.JoinedStr):
            text = "".join(_part(value) for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not isinstance(parent, ast.Expr | ast.JoinedStr):
            text = node.value
        else:
            continue
        if _BEGIN in text:
            yield node.lineno, text


def _part(value: ast.expr) -> str:
    """Return a part of a formatted string: the name of the program, the path of hosts.yaml, or `x1` for other values."""
    if isinstance(value, ast.Constant):
        return str(value.value)
    text = ast.unparse(value)
    if "program()" in text:
        return "primus-bootstrap"
    return "hosts.yaml" if text in _PATHS else "x1"


@cache
def printed_commands() -> tuple[tuple[str, str], ...]:
    """Return each printed command with its place."""
    found = []
    for place, text in messages():
        for match in re.finditer(r"(?<![\w/.-])primus-bootstrap (?=[a-z])", text):
            line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
            command = _END.split(text[match.start() :], maxsplit=1)[0].strip()
            if not _NOT_TYPED.search(line + command) and command_at(command.split()[1:]):
                found.append((place, command))
    return tuple(dict.fromkeys(found))


def test_many_commands_are_found() -> None:
    """The search for commands works."""
    assert len(printed_commands()) > 50


@pytest.mark.parametrize(("place", "command"), printed_commands())
def test_a_printed_command_can_be_typed(place: str, command: str) -> None:
    """The verb accepts its options and arguments, and hosts.yaml is the user's."""
    words = shlex.split(with_inventory(command, FILE))[1:]
    found = command_at(words)

    assert found, place
    verb, name, arguments = found
    try:
        context = verb.make_context(" ".join(name), list(arguments))
    except _UsageError as error:
        pytest.fail(f"{place}: {command}: {error.format_message()}")
    given = context.params.get("words")
    if given is not None:
        metavar = next(str(param.metavar) for param in verb.params if param.name == "words")
        assert len(given) == len(metavar.split()), f"{place}: {command}: needs {metavar}"
    if " ".join(name) in INVENTORY_VERBS:
        assert str(FILE) in words, f"{place}: {command}"


def help_examples() -> Iterator[tuple[str, str]]:
    """Yield each example at the end of a verb's help, with the verb."""
    for name, command in verbs(get_command(app)):
        for line in str(command.epilog or "").splitlines():
            if line.strip().startswith(_BEGIN):
                yield name, line.strip()


@pytest.mark.parametrize(("name", "example"), tuple(help_examples()))
def test_an_example_of_the_help_can_be_typed(name: str, example: str) -> None:
    """It is an example of its verb, and the verb accepts it."""
    found = command_at(shlex.split(example)[1:])

    assert found
    verb, words, arguments = found
    assert " ".join(words) == name
    try:
        verb.make_context(name, list(arguments))
    except _UsageError as error:
        pytest.fail(f"{example}: {error.format_message()}")
