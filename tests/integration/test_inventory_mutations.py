"""Mutated inventories never cause a traceback, and mistakes in them are always reported."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from primus_bootstrap import content
from primus_bootstrap.core.errors import InventoryError
from primus_bootstrap.inventory import find_problems, load_cluster, validate
from primus_bootstrap.inventory.schema.groups import load_groups
from primus_bootstrap.inventory.schema.names import is_known_variable
from tests.shipped import inventory_files

TOPOLOGIES = sorted(path.parent for path in inventory_files())
FILES = sorted(
    path.relative_to(content.topologies_dir())
    for topology in TOPOLOGIES
    for path in [topology / "hosts.yaml", *topology.glob("*_vars/**/*.yml")]
    if path.is_file()
)
SEARCH = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]
)
ODD = st.sampled_from(
    [
        "\t",
        "  ",
        ":",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "#",
        "&a ",
        "*a",
        "!x ",
        "!vault ",
        '"',
        "'",
        "|",
        ">",
        "%",
        "\0",
        "\x07",
        "é",
        "{{ x }}",
        "<<: ",
        "---\n",
        "\n",
        "~",
        "0x",
        "1:",
        "null",
    ]
)


def _copy(file: Path, folder: Path) -> tuple[Path, Path]:
    """Copy one topology without its state folder; return the folder and the file to mutate."""
    target = folder / "site"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(content.topologies_dir() / file.parts[0], target, ignore=shutil.ignore_patterns(".primus"))
    return target, target.joinpath(*file.parts[1:])


@st.composite
def _randomly_edited(draw: st.DrawFn, text: str) -> str:
    """Return the text after one to three random edits."""
    for _ in range(draw(st.integers(1, 3))):
        lines = text.splitlines(keepends=True)
        at = draw(st.integers(0, max(0, len(lines) - 1)))
        other = draw(st.integers(0, max(0, len(lines) - 1)))
        index = draw(st.integers(0, len(text)))
        text = draw(
            st.sampled_from(
                [
                    "".join(lines[:at] + lines[at + 1 :]),
                    "".join(lines[:at] + lines[at : at + 1] * 2 + lines[at + 1 :]),
                    "".join([*lines[:at], " " * draw(st.integers(1, 4)), *lines[at:]]),
                    "".join([*lines[:at], lines[at].lstrip() if lines else "", *lines[at + 1 :]]),
                    "".join([*lines[:at], lines[other] if lines else "", *lines[at:]]),
                    text[:index],
                    text[:index] + text[index + 1 :],
                    text[:index] + draw(ODD) + text[index:],
                ]
            )
        )
    return text


@given(data=st.data(), file=st.sampled_from(FILES))
@settings(SEARCH, max_examples=250)
def test_randomly_edited_inventory_loads_or_has_problems(data: st.DataObject, file: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The result is a cluster, or problems with file, message and fix."""
    folder, mutated = _copy(file, tmp_path_factory.getbasetemp())
    mutated.write_text(data.draw(_randomly_edited(mutated.read_text(encoding="utf-8"))), encoding="utf-8")

    result = validate(folder)

    if result.cluster is None:
        assert result.problems
        assert all(problem.what and problem.fix and Path(problem.file).exists() for problem in result.problems)
        with pytest.raises(InventoryError):
            load_cluster(folder)
    else:
        assert result.cluster.hosts
        for host in result.cluster.hosts[:2]:
            result.cluster.connection(host.name)


@given(data=st.data(), noise=st.binary(max_size=200))
@settings(SEARCH, max_examples=200)
def test_random_bytes_never_cause_a_traceback(data: st.DataObject, noise: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Random bytes after the beginning of an inventory raise no exception."""
    text = data.draw(
        st.sampled_from(
            [b"", b"all:\n", b"all:\n  hosts:\n    ", b"all: {vars: {baseline_timezone: ", b"$ANSIBLE_VAULT;1.1;AES256\n", b"[all]\n"]
        )
    )
    folder = tmp_path_factory.getbasetemp() / "noise"
    folder.mkdir(exist_ok=True)
    (folder / "hosts.yaml").write_bytes(text + noise)

    find_problems(folder)
    find_problems(folder, ask_vault_pass="x")


def _keys(text: str, names: set[str]) -> list[tuple[int, str]]:
    """Return the line indexes and keys of lines whose key is one of the names."""
    found = []
    for number, line in enumerate(text.splitlines()):
        key = re.match(r"\s*([A-Za-z_]\w*):(\s|$)", line)
        if key and key[1] in names:
            found.append((number, key[1]))
    return found


def _typo(data: st.DataObject, word: str) -> str:
    """Return the word with one typing error."""
    at = data.draw(st.integers(1, len(word) - 2))
    return data.draw(
        st.sampled_from([word[:at] + word[at + 1 :], word[:at] + "x" + word[at:], word[:at] + word[at + 1] + word[at] + word[at + 2 :]])
    )


def _replace_key(path: Path, line: int, old: str, new: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[line] = lines[line].replace(old, new, 1)
    path.write_text("".join(lines), encoding="utf-8")


@given(data=st.data(), topology=st.sampled_from(TOPOLOGIES))
@settings(SEARCH, max_examples=100)
def test_misspelt_group_is_reported(data: st.DataObject, topology: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One typing error in the name of a group is always reported."""
    folder, file = _copy(Path(topology.name) / "hosts.yaml", tmp_path_factory.getbasetemp())
    line, name = data.draw(st.sampled_from(_keys(file.read_text(encoding="utf-8"), set(load_groups()))))
    wrong = _typo(data, name)
    assume(wrong not in load_groups())
    _replace_key(file, line, name, wrong)

    assert find_problems(folder)


@given(data=st.data(), file=st.sampled_from(FILES))
@settings(SEARCH, max_examples=150)
def test_misspelt_variable_is_reported(data: st.DataObject, file: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One typing error in the name of a variable is always reported on its line."""
    folder, path = _copy(file, tmp_path_factory.getbasetemp())
    text = path.read_text(encoding="utf-8")
    known = {word for word in re.findall(r"\w+", text) if is_known_variable(word) and not word.startswith("site_") and len(word) > 3}
    keys = [key for key in _keys(text, known) if file.name != "hosts.yaml" or key[1] not in load_groups()]
    keys = [(line, name) for line, name in keys if not (file.name != "hosts.yaml" and text.splitlines()[line].startswith(" "))]
    assume(keys)
    line, name = data.draw(st.sampled_from(keys))
    wrong = _typo(data, name)
    assume(not is_known_variable(wrong))
    _replace_key(path, line, name, wrong)

    assert (line + 1, "unknown-variable") in {(problem.line, problem.rule) for problem in find_problems(folder)}


@given(data=st.data(), file=st.sampled_from(FILES))
@settings(SEARCH, max_examples=100)
def test_duplicate_key_is_reported(data: st.DataObject, file: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A key that is twice in one mapping is always reported."""
    folder, path = _copy(file, tmp_path_factory.getbasetemp())
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    simple = [number for number, line in enumerate(lines) if re.match(r"\s*[A-Za-z]\w*: +[^|>&*\s{\[]", line)]
    assume(simple)
    at = data.draw(st.sampled_from(simple))
    path.write_text("".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]), encoding="utf-8")

    assert "duplicate-key" in {problem.rule for problem in find_problems(folder)}


@given(data=st.data(), file=st.sampled_from(FILES))
@settings(SEARCH, max_examples=100)
def test_tab_is_reported(data: st.DataObject, file: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A tab in the indentation is always reported on its line."""
    folder, path = _copy(file, tmp_path_factory.getbasetemp())
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    indented = [number for number, line in enumerate(lines) if re.match(r" +[A-Za-z]\w*:", line)]
    assume(indented)
    at = data.draw(st.sampled_from(indented))
    lines[at] = "\t" + lines[at].lstrip()
    path.write_text("".join(lines), encoding="utf-8")

    assert (at + 1, "tab") in {(problem.line, problem.rule) for problem in find_problems(folder)}
