"""Is a value what an argument spec asks for? Ansible's own type checks decide, and one thing more.

Ansible's check converts (`"no"` to false, `a=b` to a mapping, 1.30 to `'1.3'`) and then throws the conversion away: the role
sees what is written. So a value must already be what the check would make of it. A number may stand for text where its text
survives (`5`, not `1.30` or `010`), and a whole number for a float.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import yaml

from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.source.yaml_values import entries, is_template, is_vaulted, line_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from primus_bootstrap.inventory.schema.specs import Option

_WORDS = {
    "str": "text",
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
    """Return one of Ansible's checks, such as `type_int` or `required_if`."""
    from ansible.module_utils.common import validation  # noqa: PLC0415 - Ansible is loaded only where an inventory is

    return cast("Callable[..., Any]", getattr(validation, f"check_{kind}"))


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a value, and on which line. `what` goes on after the variable's name."""

    line: int
    what: str
    fix: str
    rule: str


@dataclass(frozen=True, slots=True)
class DeferredPart:
    """A part of a value that only a run can judge."""

    line: int
    why: str


def judge_value(option: Option, node: yaml.Node, *, quotable: bool, path: str = "") -> Iterator[Fault | DeferredPart]:
    """Yield everything that is wrong with one value, and what must wait.

    Args:
        option: What the spec says.
        node: The value where it stands.
        quotable: Whether a message may show the value; never so inside a `no_log` option.
        path: The option's place in a nested variable, for messages.
    """
    path = path or option.name
    quotable = quotable and not option.no_log
    if waits := _waits(node):
        yield DeferredPart(line_of(node), waits)
    elif node.tag == "tag:yaml.org,2002:null":
        yield from _null(option, node, path)
    elif fault := _type_fault(option.type, node, path, quotable=quotable):
        yield fault
    else:
        yield from _choices(option, node, path, quotable=quotable)
        yield from _inside(option, node, path, quotable=quotable)


def _type_fault(wanted: str, node: yaml.Node, path: str, *, quotable: bool) -> Fault | None:
    value = value_of(node)
    if _accepts(wanted, value, node):
        return None
    what = f"{path} must be {_WORDS.get(wanted, wanted)}, found {_shown(node, quotable=quotable)}"
    return Fault(line_of(node), what, _type_fix(wanted, value, node, quotable=quotable), "type")


def _choices(option: Option, node: yaml.Node, path: str, *, quotable: bool) -> Iterator[Fault]:
    if not option.choices:
        return
    allowed = ", ".join(str(choice) for choice in option.choices)
    for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
        if not _waits(item) and value_of(item) not in option.choices:
            what = f"{path} must be one of: {allowed}; found {_shown(item, quotable=quotable)}"
            near = nearest(str(item.value), [str(choice) for choice in option.choices]) if quotable else ""
            yield Fault(line_of(item), what, f"did you mean {near}?" if near else f"choose from: {allowed}", "choice")


def _inside(option: Option, node: yaml.Node, path: str, *, quotable: bool) -> Iterator[Fault | DeferredPart]:
    if isinstance(node, yaml.MappingNode) and option.options:
        yield from _keys(option, node, path, quotable=quotable)
    if not isinstance(node, yaml.SequenceNode) or not option.elements:
        return
    for number, item in enumerate(node.value):
        place = f"{path}[{number}]"
        if waits := _waits(item):
            yield DeferredPart(line_of(item), waits)
        elif fault := _type_fault(option.elements, item, place, quotable=quotable):
            yield fault
        elif isinstance(item, yaml.MappingNode) and option.options:
            yield from _keys(option, item, place, quotable=quotable)


def _keys(option: Option, node: yaml.MappingNode, path: str, *, quotable: bool) -> Iterator[Fault | DeferredPart]:
    found = {str(key.value): (key, value) for key, value in entries(node)}
    known = {**option.options}
    for sub in option.options.values():
        known.update(dict.fromkeys(sub.raw.get("aliases", ()), sub))
    for name, (key, value) in found.items():
        if name in known:
            yield from judge_value(known[name], value, quotable=quotable, path=f"{path}.{name}")
        else:
            near = nearest(name, known)
            fix = f"did you mean {near}?" if near else f"choose from: {', '.join(known)}"
            yield Fault(line_of(key), f"{path} has no key {name}", fix, "unknown-key")
    for name, sub in option.options.items():
        if sub.required and not {name, *sub.raw.get("aliases", ())} & found.keys():
            yield Fault(line_of(node), f"{path} lacks {name}", f"add {name}: {_WORDS.get(sub.type, sub.type)}", "required-key")
    yield from _relations(option, node, found, path)


def _shown(node: yaml.Node, *, quotable: bool) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if not quotable:
        return "a value of another kind"
    quote = node.style if isinstance(node, yaml.ScalarNode) and node.style in ("'", '"') else ""
    text = str(node.value)
    return f"`{quote}{text if len(text) <= 60 else text[:57] + '…'}{quote}`"


def _relations(option: Option, node: yaml.MappingNode, found: Mapping[str, Any], path: str) -> Iterator[Fault]:
    if not any(option.raw.get(word) for word in _RELATIONS):
        return
    values = {name: None if _waits(value) else value_of(value) for name, (_, value) in found.items()}
    for word in _RELATIONS:
        terms = option.raw.get(word)
        if not terms:
            continue
        try:
            _ansible_check(word)(terms, values)
        except TypeError as error:
            yield Fault(line_of(node), f"{path}: {error}", "see the variable's entry in `primus-bootstrap schema`", "required-key")


def _waits(node: yaml.Node) -> str:
    if is_vaulted(node):
        return "under Vault"
    return "a template" if is_template(node) else ""


def _null(option: Option, node: yaml.Node, path: str) -> Iterator[Fault]:
    """Nothing after the `:` replaces the role's default by null, which only a default of null means."""
    refused_choice = option.choices and None not in option.choices
    if option.required or refused_choice or (option.has_default and option.default is not None):
        yield Fault(line_of(node), f"{path} has no value", "give it a value, or delete the line to keep the default", "type")


def _accepts(wanted: str, value: Any, node: yaml.Node) -> bool:
    if wanted in ("raw", ""):
        return True
    try:
        made = _ansible_check(f"type_{'str' if wanted == 'path' else wanted}")(value)
    except (TypeError, ValueError):
        return False
    if wanted in ("str", "path"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return isinstance(value, str) or (is_number and str(value) == node.value)
    if wanted == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted == "int":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return wanted in ("bytes", "bits", "jsonarg") or type(made) is type(value)


def _type_fix(wanted: str, value: Any, node: yaml.Node, *, quotable: bool) -> str:
    scalar = isinstance(node, yaml.ScalarNode)
    shown = node.value if quotable and scalar else "…"
    if wanted in ("str", "path") and scalar:
        return f'put it in quotes: "{shown}"'
    if wanted == "list" and scalar:
        return f"write it as a list: [{', '.join(part.strip() for part in shown.split(','))}]"
    if wanted in ("int", "float") and isinstance(value, str) and quotable and _accepts_text(wanted, value):
        return f"remove the quotes: {shown}"
    if wanted == "bool":
        return "write true or false, without quotes"
    if wanted == "dict":
        return "write its keys as `name: value` on lines of their own"
    return f"write {_WORDS.get(wanted, wanted)}"


def _accepts_text(wanted: str, value: str) -> bool:
    try:
        _ansible_check(f"type_{wanted}")(value)
    except (TypeError, ValueError):
        return False
    return True
