"""Find the tasks that Python files of the user define with the decorator of primus_bootstrap.launch.plugins.

Files are read, not imported: a plug-in may import torch, which the Python of primus-cli need not have.
Order: ./primus_plugins, then each --plugin file or folder. A file with the content of an earlier one counts once.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.launch.file_owner import check_owner
from primus_bootstrap.launch.plugins import DECORATOR
from primus_bootstrap.launch.self_exec import own_command
from primus_bootstrap.launch.tasks import PYTHON, TORCHRUN, Program, Request, Task, long_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FOLDER = "primus_plugins"
_PACKAGE = "primus_bootstrap.launch.plugins"
_NAME = re.compile(r"[a-z][a-z0-9-]*( [a-z][a-z0-9-]*)?")
_ARGUMENTS = ("name", "meaning", "usage", "launcher")
_EXAMPLE = '@task("my-task", meaning="What it does.", usage="FILE")'


@dataclass(frozen=True)
class PluginFile:
    """One file of a plug-in. `folder` is the one that was given, or the parent of a single file."""

    path: Path
    folder: Path

    @property
    def name(self) -> str:
        """The path below the folder."""
        return self.path.relative_to(self.folder).as_posix()


def sources(given: Sequence[str], cwd: Path) -> tuple[Path, ...]:
    """Return the files and folders with plug-ins: ./primus_plugins, then the given ones.

    Raises:
        UsageError: One of them does not exist, or the project's folder belongs to another account.
    """
    named = named_plugins(given, cwd)
    project = (cwd / FOLDER).absolute()
    if project in named or not project.is_dir():
        return named
    for file in _files_of(project):  # a folder that is named is trusted
        check_owner(file.path, project, "its plug-ins are not used", "--plugin")
    return (project, *named)


def named_plugins(given: Sequence[str], cwd: Path) -> tuple[Path, ...]:
    """Return the given files and folders.

    Raises:
        UsageError: One of them does not exist.
    """
    named = tuple((cwd / name).absolute() for name in given)
    for name, path in zip(given, named):  # noqa: B905 - strict= needs Python 3.10
        if not path.is_dir() and not (path.is_file() and path.suffix == ".py"):
            raise UsageError(f"plug-in {name}: not a .py file or a folder, or not found", fix="give the path of a .py file or of a folder")
    return named


def plugin_files(paths: Iterable[Path]) -> tuple[PluginFile, ...]:
    """Return every file of the plug-ins, modules that a plug-in imports included."""
    return tuple({file.path: file for path in paths for file in _files_of(path)}.values())


def plugin_tasks(paths: Sequence[Path]) -> tuple[Task, ...]:
    """Return the tasks of the files and folders.

    Raises:
        UsageError: A file cannot be read, defines no task although it is named, or defines a task wrongly or twice.
    """
    found: dict[str, Task] = {}
    contents: set[bytes] = set()
    for file in plugin_files(paths):
        content = _read(file.path)
        if content in contents:
            continue
        contents.add(content)
        tasks = tuple(_tasks_in(file, content))
        if not tasks and file.path in paths:
            raise UsageError(f"{file.path}: no function has the decorator task", fix=f"write {_EXAMPLE} above a function")
        for task in tasks:
            if task.name in found:
                fix = f"rename one of them; the other is in {found[task.name].source}"
                raise UsageError(f"{file.path}: the task {task.name} is defined twice", fix=fix)
            found[task.name] = task
    return tuple(found.values())


def files_of_task(task: Task, paths: Sequence[Path]) -> tuple[PluginFile, ...]:
    """Return the files of the plug-in that defines a task, its own file first: that file, or all files of its folder."""
    own = Path(task.source)
    root = next(path for path in paths if path == own or path in own.parents)
    return tuple(sorted(_files_of(root), key=lambda file: file.path != own))


def _files_of(path: Path) -> Iterator[PluginFile]:
    """Yield a file itself, or the Python files below a folder by name."""
    if path.is_file():
        yield PluginFile(path.absolute(), path.absolute().parent)
        return
    for file in sorted(path.rglob("*.py")):
        if not any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(path).parts):
            yield PluginFile(file.absolute(), path.absolute())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"the plug-in {path} cannot be read: {error.strerror}", fix=f"chmod +r {path}") from error


def _tasks_in(file: PluginFile, content: bytes) -> Iterator[Task]:
    try:
        tree = ast.parse(content, str(file.path))
    except (SyntaxError, ValueError) as error:
        where = f"{file.path}:{getattr(error, 'lineno', None) or 1}"
        raise UsageError(f"{where}: not valid Python: {getattr(error, 'msg', error)}", fix="correct the line") from error
    names = _decorator_names(tree)
    for node in tree.body:
        for decorator in getattr(node, "decorator_list", ()):
            if ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator) in names:
                yield _task(file, node, decorator)


def _decorator_names(tree: ast.Module) -> set[str]:
    """Return the names under which a file has imported the decorator."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE:
            names.update(item.asname or item.name for item in node.names if item.name == DECORATOR)
        elif isinstance(node, ast.ImportFrom) and node.module == _PACKAGE.rpartition(".")[0]:
            names.update(f"{item.asname or item.name}.{DECORATOR}" for item in node.names if item.name == "plugins")
        elif isinstance(node, ast.Import):
            names.update(f"{item.asname or item.name}.{DECORATOR}" for item in node.names if item.name == _PACKAGE)
    return names


def _task(file: PluginFile, node: Any, decorator: ast.expr) -> Task:
    where = f"{file.path}:{decorator.lineno}"
    if not isinstance(node, ast.FunctionDef) or not isinstance(decorator, ast.Call):
        raise UsageError(f"{where}: the decorator task needs arguments and a function", fix=f"write {_EXAMPLE} above `def …(arguments):`")
    values = _literals(decorator, where)
    problem = _problem(values)
    if problem:
        raise UsageError(f"{where}: {problem}", fix=f"write it as in {_EXAMPLE}")
    launcher = values.get("launcher", PYTHON)
    if launcher not in (PYTHON, TORCHRUN):
        raise UsageError(f"{where}: unknown launcher {launcher!r}", fix=did_you_mean(str(launcher), (PYTHON, TORCHRUN)))
    return Task(
        values["name"],
        values["meaning"],
        values.get("usage", "") or "(no arguments)",
        launcher=str(launcher),
        program=_program(file, node.name),
        added=long_option,
        source=str(file.path),
    )


def _literals(call: ast.Call, where: str) -> dict[str, Any]:
    words = [*zip(_ARGUMENTS, call.args), *((item.arg or "**", item.value) for item in call.keywords)]  # noqa: B905 - strict= needs Python 3.10
    try:
        return {name: ast.literal_eval(value) for name, value in words}
    except ValueError as error:
        raise UsageError(f"{where}: an argument of the decorator is no literal", fix=f"write texts, as in {_EXAMPLE}") from error


def _problem(values: dict[str, Any]) -> str:
    """Return what is wrong with the arguments of the decorator, or an empty string."""
    unknown = set(values) - set(_ARGUMENTS)
    if unknown:
        return f"unknown argument {min(unknown)}"
    missing = [name for name in ("name", "meaning") if not isinstance(values.get(name), str)]
    if missing:
        return f"{missing[0]} is missing or no text"
    if not _NAME.fullmatch(values["name"]):
        return f"{values['name']!r} is no name of a task: one or two words of small letters, digits and -"
    return "" if isinstance(values.get("usage", ""), str) else "usage is no text"


def _program(file: PluginFile, function: str) -> Any:
    def program(request: Request) -> Program:
        return Program((*own_command(request.python), "run-plugin", str(file.path), function), request.arguments)

    return program
