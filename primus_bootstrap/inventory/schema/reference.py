"""Generate the reference of variables and groups from the argument specs, as Markdown and as JSON Schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.kubespray_release import load_release
from primus_bootstrap.inventory.schema.groups import load_earlier_variables, load_groups, load_kubespray_variables
from primus_bootstrap.inventory.schema.names import OWN_PREFIX, explain_unknown_variable
from primus_bootstrap.inventory.schema.specs import load_common_variables, load_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from primus_bootstrap.inventory.schema.specs import Option

_TEMPLATE = r"\{\{|\{%"
_LONGEST_DEFAULT = 100
_JSON_TYPES: dict[str, dict[str, Any]] = {
    "str": {"type": ["string", "number"]},  # Ansible converts a number to text
    "path": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "list": {"type": "array"},
    "dict": {"type": "object"},
    "bytes": {"type": ["string", "integer"]},
    "bits": {"type": ["string", "integer"]},
}


@dataclass(frozen=True, slots=True)
class Row:
    """One variable, or one key of a nested variable (`users[].name`). `default` is JSON, or empty without a default."""

    name: str
    owner: str
    type: str
    default: str
    choices: str
    unit: str
    required: bool
    no_log: bool
    meaning: str


def select_options(*, role: str = "", name: str = "") -> tuple[Option, ...]:
    """Return the declared variables of one role, or the variable or role `name`, or all, sorted by owner and name.

    Raises:
        UsageError: There is no such role or variable.
    """
    options = sorted(load_options().values(), key=lambda option: (option.owner != "cluster", option.owner, option.name))
    owners = list(dict.fromkeys(option.owner for option in options))
    if role and role not in owners:
        raise UsageError(f"no such role: {role}", fix=f"choose from: {', '.join(owners)}")
    chosen = tuple(option for option in options if role in ("", option.owner) and name in ("", option.name, option.owner))
    if chosen:
        return chosen
    if name in load_kubespray_variables():
        fix = f"see https://github.com/kubernetes-sigs/kubespray/blob/{load_release().version}/docs/ansible/vars.md"
        raise UsageError(f"{name} is a variable of Kubespray", fix=fix)
    earlier = load_earlier_variables()
    if name in earlier["renamed"] or name in earlier["removed"]:
        what, fix = explain_unknown_variable(name)
        raise UsageError(what, fix=fix)
    near = nearest(name, [*(option.name for option in options), *owners])
    fix = f"did you mean {near}?" if near else "list all variables: primus-bootstrap schema --all"
    raise UsageError(f"no role has a variable {name}, and no role has that name", fix=fix)


def rows(options: Iterable[Option]) -> Iterator[Row]:
    """Yield the rows of variables. The rows of nested keys follow the row of their parent."""
    for option in options:
        yield from _rows(option, option.name)


def _rows(option: Option, path: str) -> Iterator[Row]:
    yield Row(
        name=path,
        owner=option.owner,
        type=f"{option.type} of {option.elements}" if option.elements else option.type,
        default=json.dumps(option.default, ensure_ascii=False, default=str) if option.has_default else "",
        choices=", ".join(json.dumps(choice, ensure_ascii=False) for choice in option.choices),
        unit=option.unit,
        required=option.required,
        no_log=option.no_log,
        meaning=" ".join(option.description),
    )
    inner = f"{path}[]" if option.type == "list" else path
    for key, nested in option.options.items():
        yield from _rows(nested, f"{inner}.{key}")


def example_of(value: Any) -> str:
    """Return an example value as one line of YAML."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True, sort_keys=False).removesuffix("\n...\n").strip()


def common_markdown() -> str:
    """Return the page of the variables that people set most, with one table for each topic."""
    options = load_options()
    lines = [
        "# Variables that most clusters set",
        "",
        "Generated from the roles' `defaults/` and `meta/argument_specs.yml` by `primus-bootstrap schema --format markdown`.",
        "",
        "Set them in `group_vars/` or `host_vars/` beside hosts.yaml. [All variables](all-variables.md) lists the advanced ones as well,",
        "and the keys of nested variables.",
        "*secret*: encrypt it with Ansible Vault, or look it up. It is never shown.",
    ]
    for topic, variables in load_common_variables().items():
        lines += ["", f"## {topic}", "", "| variable | type | default | example | meaning |", "|---|---|---|---|---|"]
        for name, example in variables.items():
            cells = _cells(next(_rows(options[name], name)))
            lines.append(_markdown_row((*cells[:3], f"`{example_of(example)}`", cells[3])))
    return "\n".join(lines)


def markdown(options: Sequence[Option]) -> str:
    """Return the reference of variables as Markdown, with one table for each owner."""
    lines = [
        "# All variables",
        "",
        "Generated from the roles' `defaults/` and `meta/argument_specs.yml` by `primus-bootstrap schema --all --format markdown`.",
        "The [variables that most clusters set](variables.md) are **bold** here, and have examples there. The others are advanced.",
        "",
        f"hosts.yaml may also set variables of Ansible and of Kubespray, and your own with the prefix `{OWN_PREFIX}`.",
        "Any other name is an error. *secret*: encrypt it with Ansible Vault. It is never shown.",
    ]
    common = {name for variables in load_common_variables().values() for name in variables}
    for owner in dict.fromkeys(option.owner for option in options):
        title = "Cluster" if owner == "cluster" else f"Role `{owner}`"
        lines += ["", f"## {title}", "", "| variable | type | default | meaning |", "|---|---|---|---|"]
        for row in rows(option for option in options if option.owner == owner):
            name, *others = _cells(row)
            lines.append(_markdown_row((f"**{name}**" if row.name in common else name, *others)))
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, str, str, str]:
    """Return the name, type, default and meaning of a variable as Markdown."""
    kind = row.type + (f", {row.unit}" if row.unit else "")
    marks = [word for word, holds in (("required", row.required), ("secret", row.no_log)) if holds]
    meaning = row.meaning + (f" One of: {row.choices}." if row.choices else "")
    return f"`{row.name}`", kind + "".join(f", *{mark}*" for mark in marks), _default_cell(row), meaning


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"


def _default_cell(row: Row) -> str:
    if len(row.default) > _LONGEST_DEFAULT:
        return f"see `roles/{row.owner}/defaults/main.yml`"
    return f"`{row.default}`" if row.default else ""


def markdown_groups() -> str:
    """Return the reference of the groups as Markdown."""
    lines = [
        "# Groups",
        "",
        "Generated by `primus-bootstrap schema --groups --format markdown`.",
        "",
        "A service runs on the hosts of the group with its name. A service whose group has no hosts is not installed.",
        "You may add groups of your own; each of their hosts must also be in one of the groups below.",
    ]
    for owner, title in (("primus", "Groups of primus-bootstrap"), ("kubespray", "Groups of Kubespray")):
        lines += ["", f"## {title}", "", "| group | meaning |", "|---|---|"]
        lines += [f"| `{group.name}` | {group.meaning} |" for group in load_groups().values() if group.owner == owner]
    return "\n".join(lines)


def json_schema(options: Sequence[Option], *, closed: bool) -> dict[str, Any]:
    """Return a JSON Schema for files of variables (`group_vars/*.yml`, `host_vars/*.yml`).

    Args:
        closed: Reject all other names except those of Kubespray, of Ansible and of the user's own.
    """
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Variables of a cluster: group_vars/*.yml and host_vars/*.yml",
        "type": "object",
        "properties": {option.name: _json_option(option) for option in options},
        "$defs": {"template": {"type": "string", "pattern": _TEMPLATE, "description": "A Jinja template, checked in the run."}},
    }
    if closed:
        passing = {name: {"description": "A variable of Kubespray."} for name in sorted(load_kubespray_variables())}
        schema["properties"] = passing | schema["properties"]
        schema["patternProperties"] = {f"^{OWN_PREFIX}": {}, "^ansible_": {}}
        schema["additionalProperties"] = False
    return schema


def _json_option(option: Option) -> dict[str, Any]:
    """Return the schema of one value. Each value may also be a template."""
    value = dict(_JSON_TYPES.get(option.type, {}))
    if option.choices:
        value["enum"] = list(option.choices)
    if option.type == "list":
        value["items"] = _json_items(option)
    elif option.options:
        value |= _json_keys(option)
    described: dict[str, Any] = {"description": " ".join(option.description), "anyOf": [value, {"$ref": "#/$defs/template"}]}
    if option.unit:
        described["description"] += f" Unit: {option.unit}."
    if option.has_default and option.default is None:
        described["anyOf"].append({"type": "null"})
    if option.has_default and not option.no_log:
        described["default"] = option.default
    if option.no_log:
        described["writeOnly"] = True
    return described


def _json_items(option: Option) -> dict[str, Any]:
    item = dict(_JSON_TYPES.get(option.elements, {}))
    if option.options:
        item |= _json_keys(option)
    return {"anyOf": [item, {"$ref": "#/$defs/template"}]}


def _json_keys(option: Option) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "type": "object",
        "properties": {key: _json_option(nested) for key, nested in option.options.items()},
        "additionalProperties": False,
    }
    required = [key for key, nested in option.options.items() if nested.required]
    return keys | ({"required": required} if required else {})
