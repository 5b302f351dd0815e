"""A fix that says exactly what to edit is accepted by the next `validate`."""

from __future__ import annotations

import difflib
import ipaddress
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from primus_bootstrap.inventory import find_problems
from tests.unit.inventory_rig import DATA, demo_content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from primus_bootstrap.core.errors import Problem

CASES = sorted(path for path in (DATA / "broken").iterdir() if path.is_dir())
WORD = r"[\w./:-]+"
MOST_FIXES = 30


@pytest.fixture(scope="module", autouse=True)
def _demo_role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch, demo_content(tmp_path_factory.mktemp("content"), monkeypatch):
        yield


def _rename(text: str, line: int, problem: Problem, new: str) -> str:
    """Rename a host, group or variable everywhere."""
    del line
    quoted = re.search(r"`([^`]+)`", problem.what)
    old = quoted[1] if quoted else problem.what.partition(" ")[0].rstrip(":")
    return re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])", new, text)


def _correct(text: str, line: int, problem: Problem, new: str) -> str:
    """Replace the word on the line that the problem quotes, or else the most similar one."""
    lines = text.splitlines(keepends=True)
    quoted = [word for word in re.findall(WORD, problem.what) if re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", lines[line])]
    old = max(quoted or re.findall(WORD, lines[line]), key=lambda word: _similarity(word, new))
    lines[line] = re.sub(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])", new, lines[line], count=1)
    return "".join(lines)


def _choose(text: str, line: int, problem: Problem, new: str) -> str:
    """Replace the last word that the problem and the value, which begins on the line, have in common."""
    start = sum(map(len, text.splitlines(keepends=True)[:line]))
    named = reversed([word.strip(":.") for word in re.findall(WORD, problem.what)])
    found = (re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", text[start:]) for word in named if word)
    match = next((one for one in found if one), None)
    return text[: start + match.start()] + new + text[start + match.end() :] if match else text


def _write_value(text: str, line: int, problem: Problem, new: str) -> str:
    """Replace the value that the problem quotes."""
    old = (re.findall(r"`([^`]+)`", problem.what) or re.findall(rf"{WORD}", problem.what.partition(": ")[0]))[-1]
    lines = text.splitlines(keepends=True)
    lines[line] = lines[line].replace(old, new)
    return "".join(lines)


def _set(text: str, line: int, problem: Problem, name: str, value: str) -> str:
    """Set a variable where it is set now, else next to the variable with the problem, else under `vars` of `all`."""
    del problem
    if re.search(rf"(?<![\w]){name}: *[^,}}\n]+", text):
        return re.sub(rf"(?<![\w]){name}: *[^,}}\n]+", f"{name}: {value}", text)
    lines = text.splitlines(keepends=True)
    indent = re.match(" *", lines[line])
    if re.match(r" +\w+: \S", lines[line]) and indent:
        return "".join((*lines[:line], f"{indent[0]}{name}: {value}\n", *lines[line:]))
    return re.sub(r"^all:\n", f"all:\n  vars: {{{name}: {value}}}\n", text)


def _widen(text: str, line: int, problem: Problem, name: str, prefix: str) -> str:
    """Set a subnet to a larger one."""
    subnet = re.search(rf"{name} (\S+)", problem.what)
    wider = ipaddress.ip_network(subnet[1] if subnet else "").supernet(new_prefix=int(prefix))
    return _set(text, line, problem, name, str(wider))


def _indent(text: str, line: int, problem: Problem, spaces: str, direction: str) -> str:
    """Move a key and the lines in it."""
    del problem
    lines = text.splitlines(keepends=True)
    column = len(lines[line]) - len(lines[line].lstrip())
    inside = (number for number in range(line + 1, len(lines)) if lines[number][: column + 1].strip())
    for number in range(line, next(inside, len(lines))):
        lines[number] = f"{' ' * int(spaces)}{lines[number]}" if direction == "more" else lines[number][int(spaces) :]
    return "".join(lines)


def _indent_line(text: str, line: int, problem: Problem, spaces: str) -> str:
    """Move one line only."""
    del problem
    lines = text.splitlines(keepends=True)
    return "".join((*lines[:line], " " * int(spaces), lines[line].lstrip(), *lines[line + 1 :]))


def _delete(text: str, line: int, _problem: Problem) -> str:
    lines = text.splitlines(keepends=True)
    return "".join((*lines[:line], *lines[line + 1 :]))


def _unquote(text: str, line: int, _problem: Problem) -> str:
    lines = text.splitlines(keepends=True)
    return "".join((*lines[:line], lines[line].replace('"', "").replace("'", ""), *lines[line + 1 :]))


# The form of a fix, and how to apply it to the text of the file, the index of the line, the problem, and the groups of the form. Other
# fixes leave a choice to the user (`give each host an address of its own`).
FORMS: tuple[tuple[str, Callable[..., str]], ...] = (
    (rf"(?:^|, or )rename it to `?({WORD})`?", _rename),
    (rf"^did you mean `?({WORD}?)`?\?", _correct),
    (rf"^choose from:? ({WORD}?)(?=,|$)", _choose),
    (rf"^(?:write it [a-z ]+:|write|remove the \w+:|add the prefix length, for example) ({WORD}\d)(?:$|, and)", _write_value),
    (rf'^put it in quotes: ("{WORD}")$', _write_value),
    (rf"(?:^|, or |, and )set (\w+): ({WORD}?)(?=$|,|;)", _set),
    (r"(?:^|, or )set (\w+) to (\d+) or less", _set),
    (r"or lower (\w+) to (\d+)$", _set),
    (r"^set (\w+) to a subnet of at least /(\d+)$", _widen),
    (r"(?:^|, or )delete (?:it|the line|\w+_\w+)(?=$|,|;| there| to use)", _delete),
    (r"without quotes$", _unquote),
    (r"(?:^indent it with all lines in it|, or) by (\d+) spaces? (more|less), ", _indent),
    (r"^indent this line by (\d+) spaces,", _indent_line),
)


def _applied(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield the file's text after each edit that the fix names, and the text that the fix told the user to write."""
    path = Path(problem.file)
    if not path.is_file() or problem.line == 0:
        return
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return
    for form, edit in FORMS:
        for match in re.finditer(form, problem.fix):
            new = edit(text, problem.line - 1, problem, *match.groups())
            if new != text:
                yield new, match.groups()[-1] if match.groups() else ""


def _similarity(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _key(problem: Problem) -> tuple[str, str]:
    return problem.rule, re.sub(r"line \d+|:\d+", "", problem.what)


def _subject(problem: Problem) -> str:
    """Return the name that a problem is about; empty if its message begins otherwise."""
    match = re.match(rf"(?:group name )?`?({WORD}?)`?(?:: | must )", problem.what)
    return match[1] if match else ""


def _is_about(found: Problem, written: str, fixed: Problem, before: Sequence[Problem]) -> bool:
    """Return whether a problem refuses what the fix wrote. Missing partners (`add a host to …`) belong to an incomplete file."""
    if found.fix.startswith("add ") or written not in found.what or _key(found) in {_key(one) for one in before}:
        return False
    return found.rule == fixed.rule or (found.rule, found.line) not in {(one.rule, one.line) for one in before}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_fix_is_refused(case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every exact fix, and every alternative of it, removes its problem and leads to no other one.

    The first edit of each round stays, until no problem has an exact fix.
    """
    shutil.copytree(case, tmp_path / case.name)
    monkeypatch.chdir(tmp_path)
    expected: dict[str, Any] = yaml.safe_load((case / "expected.yml").read_text(encoding="utf-8"))
    path = Path(case.name) / expected.get("path", "")
    tried, written_before = set(), set[str]()
    for _ in range(MOST_FIXES):
        before = find_problems(path)
        refused = [one for one in before if _subject(one) in written_before]
        assert refused == [], f"an earlier fix led to: {refused[0]}"
        problem = next((one for one in before if _key(one) not in tried and any(True for _ in _applied(one))), None)
        if problem is None:
            return
        tried.add(_key(problem))
        file = Path(problem.file)
        original = file.read_text(encoding="utf-8")
        texts = list(_applied(problem))
        for new, written in reversed(texts):
            file.write_text(new, encoding="utf-8")
            after = find_problems(path)
            refused = [one for one in after if written and _is_about(one, written.strip("\"'"), problem, before)]
            assert _key(problem) not in {_key(one) for one in after}, f"{problem}\n--- is still there after\n{new}"
            assert refused == [], f"{problem}\n--- then\n{refused[0]}"
            written_before |= {written} - {""}
        assert original != texts[0][0]
    pytest.fail("fixes never end")
