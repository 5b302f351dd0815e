"""Read plain data (parsed JSON or YAML) into dataclasses by their type hints, and report every mistake with its path.

    @readable
    @dataclass(frozen=True)
    class Policy:
        backoff_s: Annotated[tuple[Annotated[int, at_least(0)], ...], NOT_EMPTY] = (0, 10, 30)

    policy = read(Policy, {"backoff_s": [0, -1]}, origin="job.json")
    # InvalidDataError: job.json: backoff_s[1]: expected a number from 0, found -1

Supported hints: str, int, float, bool, Any, Path, Literal, unions, tuples, mappings, dataclasses, and Annotated with constraints.
A dataclass may define `issues(self) -> Iterable[Issue]` for rules about several fields. Python 3.9, standard library only.
"""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    import re
    from dataclasses import Field

T = TypeVar("T")
_SHOWN_CHARACTERS = 200  # of a wrong value in a message
_SHOWN_FIXES = 5
_INVALID: Any = object()
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", Path: "a path", type(None): "null"}


@dataclass(frozen=True, order=True)
class Issue:
    """One mistake in the data. `path` names the value, like `policy.backoff_s[2]`; an empty path means the whole document."""

    path: str
    what: str
    fix: str

    def __str__(self) -> str:
        """Return path and mistake in one line."""
        return f"{self.path}: {self.what}" if self.path else self.what


class InvalidDataError(UsageError):
    """The data do not have the expected structure. `issues` holds every mistake."""

    def __init__(self, issues: Iterable[Issue], *, origin: str = "") -> None:
        """Build a message with one line per mistake, each beginning with the origin of the data."""
        self.issues, self.origin = tuple(issues), origin
        fixes = [f"{issue.path}: {issue.fix}" if issue.path else issue.fix for issue in self.issues]
        more = [f"and {len(fixes) - _SHOWN_FIXES} more"] if len(fixes) > _SHOWN_FIXES else []
        what = "\n".join(f"{origin}: {issue}" if origin else str(issue) for issue in self.issues)
        super().__init__(what, fix="; ".join([*fixes[:_SHOWN_FIXES], *more]))

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling."""
        return partial(InvalidDataError, origin=self.origin), (self.issues,)


@dataclass(frozen=True)
class Constraint:
    """A rule for one value, used in Annotated. `expected` completes the sentence "expected …"."""

    expected: str
    accepts: Callable[[Any], bool]


NOT_EMPTY = Constraint("at least one entry", bool)


def at_least(minimum: float, maximum: float = float("inf")) -> Constraint:
    """Return a constraint for numbers; both limits are allowed values."""
    limits = f"from {minimum}" if maximum == float("inf") else f"from {minimum} to {maximum}"
    return Constraint(f"a number {limits}", lambda value: minimum <= value <= maximum)


def matching(pattern: re.Pattern[str], expected: str = "") -> Constraint:
    """Return a constraint for text that matches a regular expression as a whole."""
    return Constraint(expected or f"text like {pattern.pattern}", lambda value: pattern.fullmatch(value) is not None)


def readable(kind: type[T]) -> type[T]:
    """Mark a dataclass for `read`. Ruff then keeps the imports of its type hints available at run time (see pyproject.toml)."""
    return kind


def read(  # noqa: PLR0913 - everything after the data has a default
    kind: type[T], data: Any, *, origin: str = "", schema: str = "", ignored: Iterable[str] = (), ignore_unknown: bool = False
) -> T:
    """Return the data as a value of this type.

    Args:
        origin: File or other source of the data, for the message.
        schema: The value that the key `schema` must have; empty: the dataclass decides about that key.
        ignored: Paths of keys that are skipped, for example those of earlier releases.
        ignore_unknown: Skip all unknown keys, for data that a newer release may have written.

    Raises:
        InvalidDataError: With all mistakes.
    """
    reader = _Reader(frozenset(ignored) | ({"schema"} if schema else frozenset()), ignore_unknown=ignore_unknown)
    if schema and isinstance(data, Mapping) and data.get("schema") != schema:
        reader.report("schema", f"expected {schema}, found {_shown(data.get('schema'))}", "use the release that wrote this file")
    value = reader.value(kind, data, "")
    if reader.issues:
        raise InvalidDataError(reader.issues, origin=origin)
    return value  # type: ignore[no-any-return]


class _Reader:
    """Converts values and collects the mistakes. An invalid value becomes its default, so that the rest can be checked too."""

    def __init__(self, ignored: frozenset[str], *, ignore_unknown: bool) -> None:
        self.issues: list[Issue] = []
        self._ignored, self._ignore_unknown = ignored, ignore_unknown

    def report(self, path: str, what: str, fix: str) -> Any:
        self.issues.append(Issue(path, what, fix))
        return _INVALID

    def value(self, kind: Any, data: Any, path: str) -> Any:
        """Return the converted value, or _INVALID after a report."""
        if kind is Any:
            return data
        if is_dataclass(kind):
            return self._dataclass(kind, data, path)
        readers = {
            Annotated: self._constrained,
            Literal: self._choice,
            Union: self._union,
            tuple: self._tuple,
            dict: self._mapping,
            Mapping: self._mapping,
        }
        return readers.get(_origin(kind), self._scalar)(kind, data, path)

    def _mismatch(self, kind: Any, data: Any, path: str, fix: str = "") -> Any:
        expected = kind.expected if isinstance(kind, Constraint) else _expected(kind)
        return self.report(path, f"expected {expected}, found {_shown(data)}", fix or f"write {expected}")

    def _scalar(self, kind: Any, data: Any, path: str) -> Any:
        if kind is Path and isinstance(data, (str, Path)):
            return Path(data)
        accepted = (int, float) if kind is float else kind
        if not isinstance(data, accepted) or (isinstance(data, bool) and kind is not bool):  # bool is a subclass of int
            return self._mismatch(kind, data, path)
        return data if kind is float else kind(data)  # Ansible's values are of subclasses

    def _choice(self, kind: Any, data: Any, path: str) -> Any:
        choices = get_args(kind)
        return data if data in choices else self._mismatch(kind, data, path, did_you_mean(str(data), map(str, choices)))

    def _constrained(self, kind: Any, data: Any, path: str) -> Any:
        inner, *constraints = get_args(kind)
        value = self.value(inner, data, path)
        if value is not _INVALID:
            for constraint in constraints:
                if isinstance(constraint, Constraint) and not constraint.accepts(value):
                    return self._mismatch(constraint, data, path)
        return value

    def _union(self, kind: Any, data: Any, path: str) -> Any:
        arguments = get_args(kind)
        others = [one for one in arguments if one is not type(None)]
        if data is None and len(others) < len(arguments):
            return None
        if len(others) == 1:
            return self.value(others[0], data, path)
        for one in others:
            attempt = _Reader(self._ignored, ignore_unknown=self._ignore_unknown)
            value = attempt.value(one, data, path)
            if not attempt.issues:
                return value
        return self._mismatch(kind, data, path)

    def _tuple(self, kind: Any, data: Any, path: str) -> Any:
        kinds = get_args(kind)
        is_open = kinds[-1] is Ellipsis
        if not isinstance(data, (list, tuple)) or not (is_open or len(data) == len(kinds)):
            return self._mismatch(kind, data, path)
        if is_open and kinds[0] in _NAMES and {*map(type, data)} <= {kinds[0]}:
            return tuple(data)  # fast: states name thousands of hosts
        items = enumerate(data)
        values = tuple(self.value(kinds[0 if is_open else number], item, f"{path}[{number}]") for number, item in items)
        return _INVALID if any(value is _INVALID for value in values) else values

    def _mapping(self, kind: Any, data: Any, path: str) -> Any:
        if not isinstance(data, Mapping):
            return self._mismatch(kind, data, path)
        key_kind, value_kind = get_args(kind)
        values = {
            self.value(key_kind, key, _join(path, key)): self.value(value_kind, value, _join(path, key)) for key, value in data.items()
        }
        return _INVALID if any(item is _INVALID for pair in values.items() for item in pair) else values

    def _dataclass(self, kind: Any, data: Any, path: str) -> Any:
        if not isinstance(data, Mapping):
            return self._mismatch(kind, data, path)
        hints = _hints(kind)
        for key in data:
            if key not in hints and _join(path, key) not in self._ignored and not self._ignore_unknown:
                self.report(_join(path, key), "unknown key", did_you_mean(str(key), hints))
        values = {item.name: self._field(item, hints[item.name], data, path) for item in fields(kind) if item.init}
        given = {name: value for name, value in values.items() if value is not _INVALID}
        if any(item.name not in given and _is_required(item) for item in fields(kind) if item.init):
            return _INVALID
        made = kind(**given)
        for issue in made.issues() if hasattr(made, "issues") else ():
            where = _join(path, issue.path)
            if not any(known.path.startswith(where) for known in self.issues):  # else it may follow from that mistake
                self.issues.append(replace(issue, path=where))
        return made

    def _field(self, item: Field[Any], hint: Any, data: Mapping[Any, Any], path: str) -> Any:
        where = _join(path, item.name)
        if item.name in data:
            return self.value(hint, data[item.name], where)
        return self.report(where, "missing", f"add {item.name}: {_expected(hint)}") if _is_required(item) else _INVALID


def _origin(kind: Any) -> Any:
    """Return the generic type of a hint; `Union` for `X | Y` too."""
    origin = get_origin(kind)
    return Union if origin is getattr(types, "UnionType", Union) else origin


def _is_required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _join(path: str, key: Any) -> str:
    if not path or not key:
        return f"{path}{key}"
    return f"{path}{key}" if str(key).startswith("[") else f"{path}.{key}"


def _shown(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _expected(kind: Any) -> str:
    """Return what a type accepts, in words."""
    origin, arguments = _origin(kind), get_args(kind)
    if origin is Annotated:
        named = [one.expected for one in arguments[1:] if isinstance(one, Constraint)]
        return named[0] if named else _expected(arguments[0])
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is Union:
        return " or ".join(map(_expected, arguments))
    if origin is tuple:
        return "a list" if arguments[-1] is Ellipsis else f"a list of {len(arguments)} values"
    if origin in (dict, Mapping) or is_dataclass(kind):
        return "a mapping"
    return _NAMES.get(kind, "a value")


class _NamedUnions(ast.NodeTransformer):
    """Replaces `X | Y` by `Union[X, Y]`: Python 3.9 cannot evaluate the first."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Replace one operator; hints contain no other than `|`."""
        self.generic_visit(node)
        pair = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name("Union", ast.Load()), pair, ast.Load())


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the type hint of each field; string hints are evaluated where their class is defined."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        annotations = dict(_annotations(base))
        names = {**vars(sys.modules[base.__module__]), "Union": Union}
        hints.update(get_type_hints(types.SimpleNamespace(__annotations__=annotations), names, include_extras=True))
    return {item.name: hints[item.name] for item in fields(kind)}


def _annotations(kind: type) -> Iterator[tuple[str, Any]]:
    for name, hint in vars(kind).get("__annotations__", {}).items():
        yield name, ast.unparse(_NamedUnions().visit(ast.parse(hint, mode="eval"))) if isinstance(hint, str) else hint
