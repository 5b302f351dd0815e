"""primus_bootstrap.launch.plugins: tasks that files of the user define with a decorator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.plugins import plugin_runner
from primus_bootstrap.launch.plugins.plugin_discovery import files_of_task, plugin_tasks, sources
from primus_bootstrap.launch.tasks import Request, all_tasks, find_task

ROOT = Path(__file__).resolve().parents[2]
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have files of two accounts")
COUNT = '''
import no_such_module_on_this_machine
from primus_bootstrap.launch.plugins import task


@task("count lines", meaning="Count the lines of files.", usage="FILE...")
def count(arguments):
    """Count."""
'''


def write(path: Path, text: str = COUNT) -> Path:
    """Write a plug-in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def decorated(arguments: str, *, function: str = "def f(arguments): ...") -> str:
    """Return a plug-in whose decorator has these arguments."""
    return f"from primus_bootstrap.launch.plugins import task\n\n@task({arguments})\n{function}\n"


def test_a_decorated_function_is_a_task(tmp_path: Path) -> None:
    """The file is not imported: it may need modules that only the Python of the run has."""
    file = write(tmp_path / "count.py")
    task, arguments = find_task(["count", "lines", "a", "b"], plugin_tasks([file]))
    assert task.program is not None
    started = task.program(Request(arguments, "/venv/bin/python", lambda: tmp_path))

    assert (task.name, task.meaning, task.usage, task.launcher) == ("count lines", "Count the lines of files.", "FILE...", "python")
    assert (started.argv[0], started.argv[-3:]) == ("/venv/bin/python", ("run-plugin", str(file), "count"))
    assert started.arguments == ("a", "b")


@pytest.mark.parametrize(
    "text",
    [
        'import primus_bootstrap.launch.plugins as p\n\n@p.task("a", meaning="A.")\ndef f(arguments): ...\n',
        'from primus_bootstrap.launch import plugins\n\n@plugins.task("a", "A.")\ndef f(arguments): ...\n',
        'from primus_bootstrap.launch.plugins import task as t\n\n@t(name="a", meaning="A.", launcher="torchrun")\ndef f(words): ...\n',
    ],
)
def test_the_decorator_is_found_under_each_name_of_an_import(tmp_path: Path, text: str) -> None:
    """Module, function, and another name for it."""
    assert [(task.name, task.meaning) for task in plugin_tasks([write(tmp_path / "a.py", text)])] == [("a", "A.")]


def test_project_folder_and_given_plug_ins_are_read(tmp_path: Path) -> None:
    """./primus_plugins comes first. A file without a task in a folder is a module of the others; a second copy counts once."""
    write(tmp_path / "primus_plugins/count.py")
    write(tmp_path / "primus_plugins/part/shared.py", "VALUE = 1\n")
    write(tmp_path / "own/copy.py")
    write(tmp_path / "own/other.py", decorated('"other", meaning="Another."'))
    found = sources(["own", "own/other.py"], tmp_path)

    assert found == (tmp_path / "primus_plugins", tmp_path / "own", tmp_path / "own/other.py")
    assert [task.name for task in plugin_tasks(found)] == ["count lines", "other"]


def test_the_files_of_a_plug_in_are_those_of_its_folder(tmp_path: Path) -> None:
    """They travel together, the task's own file first. A file that was given alone has no others."""
    alone = write(tmp_path / "count.py")
    write(tmp_path / "p/a_module.py", "VALUE = 1\n")
    write(tmp_path / "p/sub/more.py", "VALUE = 2\n")
    write(tmp_path / "p/zcount.py")
    (task,) = plugin_tasks([tmp_path / "p"])

    assert [file.name for file in files_of_task(task, [tmp_path / "p"])] == ["zcount.py", "a_module.py", "sub/more.py"]
    assert [file.path for file in files_of_task(plugin_tasks([alone])[0], [alone])] == [alone]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "a.py: no function has the decorator task"),
        ("def f(:\n", "a.py:1: not valid Python"),
        (decorated('"a"'), "a.py:3: meaning is missing or no text"),
        (decorated('"Two Words Here", meaning="A."'), "'Two Words Here' is no name of a task"),
        (decorated('"a", meaning="A.", luncher="x"'), "unknown argument luncher"),
        (decorated('"a", meaning="A.", launcher="torchrn"'), "unknown launcher 'torchrn'\n  fix: did you mean torchrun?"),
        (decorated('NAME, meaning="A."'), "an argument of the decorator is no literal"),
        (decorated('"a", meaning="A."', function="class F: ..."), "needs arguments and a function"),
    ],
)
def test_a_wrong_plug_in_is_an_error_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    """File, line, and what to write."""
    with pytest.raises(UsageError) as caught:
        plugin_tasks([write(tmp_path / "a.py", text)])

    assert message in str(caught.value)


def test_two_tasks_of_one_name_are_an_error(tmp_path: Path) -> None:
    """Also if one of them is a task of primus-cli."""
    first, second = write(tmp_path / "a.py"), write(tmp_path / "b.py", COUNT + "# another file\n")
    with pytest.raises(UsageError, match=r"the task count lines is defined twice\n  fix: rename one of them; the other is in .*a.py"):
        plugin_tasks([first, second])
    preflight = plugin_tasks([write(tmp_path / "c.py", decorated('"preflight", meaning="Mine."'))])

    with pytest.raises(UsageError, match="primus-cli has a task preflight already"):
        all_tasks(preflight)


def test_a_missing_plug_in_is_an_error(tmp_path: Path) -> None:
    """A mistyped --plugin must not start a run without it."""
    with pytest.raises(UsageError, match=r"plug-in nowhere.py: not a .py file or a folder, or not found"):
        sources(["nowhere.py"], tmp_path)


@ROOT_ONLY
def test_a_plug_in_of_another_account_is_refused(tmp_path: Path) -> None:
    """In ./primus_plugins of a shared folder; one that is named is trusted."""
    file = write(tmp_path / "primus_plugins/count.py")
    os.chown(file, 12345, 12345)

    with pytest.raises(UsageError, match=r"uid 12345\); its plug-ins are not used\n  fix: .*--plugin"):
        sources([], tmp_path)
    assert sources(["primus_plugins"], tmp_path) == (tmp_path / "primus_plugins",)


def test_the_function_is_called_with_the_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Modules beside the file can be imported. The result is the exit code, None is 0, and another value an error."""
    write(tmp_path / "beside_the_plugin.py", "CODES = {'four': 4, 'text': 'x', 'none': None}\n")
    function = "def f(words):\n    import beside_the_plugin\n    return beside_the_plugin.CODES[words[0]]"
    text = decorated('"a", meaning="A."', function=function)
    file = str(write(tmp_path / "a.py", text))

    assert [plugin_runner.main([file, "f", word]) for word in ("four", "none", "text")] == [4, 0, 1]
    assert "f() returned 'x'\n  fix: return an exit code" in capsys.readouterr().err


def test_the_example_of_the_documentation_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As printed in docs/primus-cli.md."""
    page = (ROOT / "docs/primus-cli.md").read_text()
    text = page.partition("```python\n# primus_plugins/count.py\n")[2].partition("```")[0]
    file = write(tmp_path / "primus_plugins/count.py", text)
    task, arguments = find_task(["count", "lines", str(file)], plugin_tasks(sources([], tmp_path)))
    code = plugin_runner.main([str(file), "count", *arguments])

    assert (task.meaning, code) == ("Count the lines of files.", 0)
    assert capsys.readouterr().out == f"{file} {len(text.splitlines())}\n"
