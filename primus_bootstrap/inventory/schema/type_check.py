"""Check a value against an argument spec with Ansible's type checks, more strictly in one point.

Ansible's check converts a value (`"no"` to false, `a=b` to a mapping, 1.30 to `'1.3'`) and discards the result, so the role
receives the original. A value must therefore already have the expected type. Two conversions are allowed: a number as text if
its text stays the same (`5`, not `1.30` or `010`), and a whole number as a float.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import yaml

from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.source.yaml_values import entries, is_null, is_template, is_vaulted, line_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from primus_bootstrap.inventory.schema.specs import Option

_TYPE_NAMES = {
    "str": "a string",
    "path": "a path",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "a mapping",
    "bytes": "a size such as 10M",
    "bits": "a size such as 10Mb",
    "jsonarg": "JSON",
}
_RELATIONS = ("mutually_exclusive", "required_together", "required_one_of", "required_if", "required_by")


@cache
def _ansible_check(kind: str) -> Callable[..., Any]:
    """Return one of Ansible's checks, for example `type_int` or `required_if`."""
    from ansible.module_utils.common import validation  # noqa: PLC0415 - Ansible takes 0.2 s to import

    return cast("Callable[..., Any]", getattr(validation, f"check_{kind}"))


@dataclass(frozen=True, slots=True)
class Fault:
    """A problem of a value and its line."""

    line: int
    what: str
    fix: str
    rule: str


@dataclass(frozen=True, slots=True)
class DeferredPart:
    """A part of a value that only a run can check."""

    line: int
    why: str


def check_value(option: Option, node: yaml.Node, *, quotable: bool, path: str = "") -> Iterator[Fault | DeferredPart]:
    """Yield the problems of one value, and the parts that only a run can check.

    Args:
        quotable: Whether messages may show the value. Values of `no_log` options are never shown.
        path: The path of the option in a nested variable, for messages.
    """
    path = path or option.name
    quotable = quotable and not option.no_log
    if reason := _deferred_reason(node):
        yield DeferredPart(line_of(node), reason)
    elif is_null(node):
        yield from _null(option, node, path)
    elif fault := _type_fault(option.type, node, path, quotable=quotable, unit=option.unit):
        yield fault
    else:
        yield from _choices(option, node, path, quotable=quotable)
        yield from _negative(option, node, path, quotable=quotable)
        yield from _inside(option, node, path, quotable=quotable)


def _type_fault(expected: str, node: yaml.Node, path: str, *, quotable: bool, unit: str) -> Fault | None:
    value = value_of(node)
    if _accepts(expected, value, node):
        return None
    what = f"{path} must be {_TYPE_NAMES.get(expected, expected)}, found {_shown(node, quotable=quotable)}"
    fix = _type_fix(expected, value, node, quotable=quotable)
    in_unit = f", in {unit} and without the unit" if unit and fix == f"write {_TYPE_NAMES.get(expected)}" else ""
    return Fault(line_of(node), what, f"{fix}{in_unit}", "type")


def _choices(option: Option, node: yaml.Node, path: str, *, quotable: bool) -> Iterator[Fault]:
    if not option.choices:
        return
    allowed = ", ".join(str(choice) for choice in option.choices)
    for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        if not _deferred_reason(item) and value_of(item) not in option.choices:
            what = f"{path} must be one of: {allowed}; found {_shown(item, quotable=quotable)}"
            near = nearest(str(item.value), [str(choice) for choice in option.choices]) if quotable else ""
            yield Fault(line_of(item), what, f"did you mean {near}?" if near else f"choose from: {allowed}", "choice")


def _negative(option: Option, node: yaml.Node, path: str, *, quotable: bool) -> Iterator[Fault]:
    """Report a negative number, also in a list, if the option's numbers cannot be negative."""
    if not option.not_negative:
        return
    for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        value = None if _deferred_reason(item) else value_of(item)
        if isinstance(value, (int, float)) and value < 0:
            unit = f" (in {option.unit})" if option.unit else ""
            fix = f"write 0 or more{unit}; see what 0 means: primus-bootstrap schema {path.partition('.')[0].partition('[')[0]}"
            yield Fault(line_of(item), f"{path} must not be negative, found {_shown(item, quotable=quotable)}", fix, "negative")


def _inside(option: Option, node: yaml.Node, path: str, *, quotable: bool) -> Iterator[Fault | DeferredPart]:
    if isinstance(node, yaml.MappingNode) and option.options:
        yield from _keys(option, node, path, quotable=quotable)
    if not isinstance(node, yaml.SequenceNode) or not option.elements:
        return
    for number, item in enumerate(node.value):
        item_path = f"{path}[{number}]"
        if reason := _deferred_reason(item):
            yield DeferredPart(line_of(item), reason)
        elif fault := _type_fault(option.elements, item, item_path, quotable=quotable, unit=option.unit):
            yield fault
        elif isinstance(item, yaml.MappingNode) and option.options:
            yield from _keys(option, item, item_path, quotable=quotable)


def _keys(option: Option, node: yaml.MappingNode, path: str, *, quotable: bool) -> Iterator[Fault | DeferredPart]:
    found = {str(key.value): (key, value) for key, value in entries(node)}
    known = {**option.options}
    for nested in option.options.values():
        known.update(dict.fromkeys(nested.raw.get("aliases", ()), nested))
    for name, (key, value) in found.items():
        if name in known:
            yield from check_value(known[name], value, quotable=quotable, path=f"{path}.{name}")
        else:
            near = nearest(name, known)
            fix = f"did you mean {near}?" if near else f"choose from: {', '.join(known)}"
            yield Fault(line_of(key), f"{path}: unknown key {name}", fix, "unknown-key")
    for name, nested in option.options.items():
        if nested.required and not {name, *nested.raw.get("aliases", ())} & found.keys():
            fix = f"add {name}: {_TYPE_NAMES.get(nested.type, nested.type)}"
            yield Fault(line_of(node), f"{path}: the required key {name} is missing", fix, "required-key")
    yield from _relations(option, node, found, path)


def _shown(node: yaml.Node, *, quotable: bool) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if not quotable:
        return "a value of another type"
    quote = node.style if isinstance(node, yaml.ScalarNode) and node.style in ("'", '"') else ""
    text = str(node.value)
    return f"`{quote}{text if len(text) <= 60 else text[:57] + '…'}{quote}`"


def _relations(option: Option, node: yaml.MappingNode, found: Mapping[str, Any], path: str) -> Iterator[Fault]:
    if not any(option.raw.get(relation) for relation in _RELATIONS):
        return
    values = {name: None if _deferred_reason(value) else value_of(value) for name, (_, value) in found.items()}
    for relation in _RELATIONS:
        terms = option.raw.get(relation)
        if not terms:
            continue
        try:
            _ansible_check(relation)(terms, values)
        except TypeError as error:
            fix = f"see the keys of the variable: primus-bootstrap schema {option.name}"
            yield Fault(line_of(node), f"{path}: {error}", fix, "required-key")


def _deferred_reason(node: yaml.Node) -> str:
    """Return why only a run can resolve a value; empty if it is plain."""
    if is_vaulted(node):
        return "encrypted with Vault"
    return "a template" if is_template(node) else ""


def _null(option: Option, node: yaml.Node, path: str) -> Iterator[Fault]:
    """Report an empty value: it would replace the role's default with null."""
    not_a_choice = option.choices and None not in option.choices
    if option.required or not_a_choice or (option.has_default and option.default is not None):
        yield Fault(line_of(node), f"{path} has no value", "set a value, or delete the line to use the default", "type")


def _accepts(expected: str, value: Any, node: yaml.Node) -> bool:
    if expected in ("raw", ""):
        return True
    try:
        converted = _ansible_check(f"type_{'str' if expected == 'path' else expected}")(value)
    except (TypeError, ValueError):
        return False
    if expected in ("str", "path"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return isinstance(value, str) or (is_number and str(value) == node.value)
    if expected in ("int", "float"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return expected in ("bytes", "bits", "jsonarg") or type(converted) is type(value)


def _type_fix(expected: str, value: Any, node: yaml.Node, *, quotable: bool) -> str:
    scalar = isinstance(node, yaml.ScalarNode)
    shown = node.value if quotable and scalar else "…"
    if expected in ("str", "path") and scalar:
        return f'put it in quotes: "{shown}"'
    if expected == "list" and scalar:
        return f"write it as a list: [{', '.join(part.strip() for part in shown.split(','))}]"
    if expected in ("int", "float") and isinstance(value, str) and quotable and _accepts_text(expected, value):
        return f"remove the quotes: {shown}"
    if expected == "bool":
        return "write true or false, without quotes"
    if expected == "dict":
        return "write each of its keys as `name: value` on a separate line"
    return f"write {_TYPE_NAMES.get(expected, expected)}"


def _accepts_text(expected: str, value: str) -> bool:
    try:
        _ansible_check(f"type_{expected}")(value)
    except (TypeError, ValueError):
        return False
    return True
