"""Read the fields of a dataclass from the source of a program, without running it. Python 3.9 parses it, although it cannot import it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_PACKAGE = "workloads"


class UnreadableError(ValueError):
    """The source has no such name, or an expression that is not a constant."""


@dataclass(frozen=True)
class Field:
    """One field of a dataclass. The arguments of its `field(...)`, `setting(...)` or `section(...)` are constants."""

    name: str
    kind: ast.expr  # the annotation
    function: str  # the name of that function
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


class Module:
    """The source of one module below workloads/."""

    def __init__(self, read: Callable[[str], str | None], path: str) -> None:
        """Parse a module.

        Args:
            read: Returns the text of a file below workloads/, None if there is none.
            path: The file, for example bench/gemm.py.

        Raises:
            UnreadableError: The file cannot be read or is not Python.
        """
        text = read(path)
        if text is None:
            raise UnreadableError(f"{path}: no such file")
        try:
            self.tree = ast.parse(text)
        except SyntaxError as error:
            raise UnreadableError(f"{path}: {error}") from error
        self._read, self._path = read, path

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (ast.get_docstring(self.tree) or "").partition("\n")[0]

    def fields(self, name: str) -> Iterator[Field]:
        """Yield the fields of a class.

        Raises:
            UnreadableError: There is no such class, or a field does not consist of constants.
        """
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                yield from (self._field(item) for item in node.body if isinstance(item, ast.AnnAssign))
                return
        raise UnreadableError(f"{self._path}: no class {name}")

    def _field(self, node: ast.AnnAssign) -> Field:
        if not isinstance(node.target, ast.Name) or not isinstance(node.value, ast.Call):
            raise UnreadableError(f"{self._path}:{node.lineno}: not a field")
        keywords = {str(item.arg): self.value(item.value) for item in node.value.keywords}
        function = ast.unparse(node.value.func)
        return Field(node.target.id, node.annotation, function, tuple(self._argument(item) for item in node.value.args), keywords)

    def _argument(self, node: ast.expr) -> Any:
        """Return an argument; the name of a class stays a name."""
        classes = {item.name for item in self.tree.body if isinstance(item, ast.ClassDef)}
        return node.id if isinstance(node, ast.Name) and node.id in classes else self.value(node)

    def constant(self, name: str) -> Any:
        """Return a constant of the module, or one that it imports from another module below workloads/.

        Raises:
            UnreadableError: There is none, or its value is not a constant.
        """
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and any(item.name == name for item in node.names):
                return Module(self._read, _file_of(node.module)).constant(name)
            value = _assigned(node, name)
            if value is not None:
                return self.value(value)
        raise UnreadableError(f"{self._path}: no constant {name}")

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression of constants: numbers, texts, collections, names, f-strings, `", ".join(x)` and `tuple(x)`.

        Raises:
            UnreadableError: It is another expression.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Tuple, ast.List, ast.Dict)):
            return self._collection(node)
        if isinstance(node, ast.Name):
            return self.constant(node.id)
        if isinstance(node, (ast.JoinedStr, ast.FormattedValue)):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node.value]
            return "".join(str(self.value(item)) for item in parts)
        if isinstance(node, ast.Call) and len(node.args) == 1:
            return self._call(node.func, self.value(node.args[0]))
        raise UnreadableError(f"{self._path}:{node.lineno}: not a constant")

    def _collection(self, node: ast.Tuple | ast.List | ast.Dict) -> Any:
        if isinstance(node, ast.Dict):
            return {self.value(key): self._or_none(node.values[index]) for index, key in enumerate(node.keys) if key}
        return tuple(value for item in node.elts for value in self._items(item))

    def _items(self, node: ast.expr) -> tuple[Any, ...]:
        return tuple(self.value(node.value)) if isinstance(node, ast.Starred) else (self.value(node),)

    def _or_none(self, node: ast.expr) -> Any:
        """Return a value; None for one that needs torch, such as torch.bfloat16."""
        try:
            return self.value(node)
        except UnreadableError:
            return None

    def _call(self, function: ast.expr, argument: Any) -> Any:
        if isinstance(function, ast.Name) and function.id == "tuple":
            return tuple(argument)
        if isinstance(function, ast.Attribute) and function.attr == "join":
            return str(self.value(function.value)).join(argument)
        raise UnreadableError(f"{self._path}:{function.lineno}: not a constant")


def _file_of(module: str) -> str:
    """Return the file of `workloads.bench._options` below workloads/."""
    package, _, rest = module.partition(".")
    if package != _PACKAGE:
        raise UnreadableError(f"{module} is not below {_PACKAGE}/")
    return str(PurePosixPath(*rest.split("."))) + ".py"


def _assigned(node: ast.stmt, name: str) -> ast.expr | None:
    """Return the value that a statement assigns to a name, also in `A, B = 1, 2`."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(target, ast.Name) and target.id == name:
            return value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            names = [item.id if isinstance(item, ast.Name) else "" for item in target.elts]
            if name in names:
                return value.elts[names.index(name)]
    return None
