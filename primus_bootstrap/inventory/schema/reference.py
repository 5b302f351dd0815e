"""The reference of variables and groups, generated from the specs: Markdown for people, JSON Schema for editors and checkers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import PlanError
from primus_bootstrap.core.suggestions import nearest
from primus_bootstrap.inventory.ansible.groups import load_groups, load_kubespray_variables
from primus_bootstrap.inventory.schema.names import OWN_PREFIX
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from primus_bootstrap.inventory.schema.specs import Option

_TEMPLATE = r"\{\{|\{%"
_LONGEST_DEFAULT = 100
_JSON_TYPES: dict[str, dict[str, Any]] = {
    "str": {"type": ["string", "number"]},  # Ansible turns a number into text
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
    """One variable, or one key inside one (`users[].name`), as the reference shows it; `default` is empty where there is none."""

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
    """Return the declared variables of one role, or the one called `name`, or all, sorted by owner and name.

    Raises:
        PlanError: there is no such role or variable.
    """
    options = sorted(load_options().values(), key=lambda option: (option.owner != "cluster", option.owner, option.name))
    owners = list(dict.fromkeys(option.owner for option in options))
    if role and role not in owners:
        raise PlanError(f"no such role: {role}", fix=f"choose from: {', '.join(owners)}")
    chosen = tuple(option for option in options if role in ("", option.owner) and name in ("", option.name))
    if chosen:
        return chosen
    if name in load_kubespray_variables():
        fix = "see https://github.com/kubernetes-sigs/kubespray/blob/v2.31.0/docs/ansible/vars.md"
        raise PlanError(f"{name} is Kubespray's and passes through as it is", fix=fix)
    near = nearest(name, [option.name for option in options])
    fix = f"did you mean {near}?" if near else "see all names: primus-bootstrap schema"
    raise PlanError(f"no role has a variable {name}", fix=fix)


def rows(options: Iterable[Option]) -> Iterator[Row]:
    """Yield the rows of some variables, those of nested keys after their parent's."""
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


def markdown(options: Sequence[Option]) -> str:
    """Return the reference of some variables as Markdown, one table an owner."""
    lines = [
        "# Variables",
        "",
        "Generated from the roles' `defaults/` and `meta/argument_specs.yml` by `primus-bootstrap schema --format markdown`.",
        "",
        f"Beside these, hosts.yaml takes Ansible's settings, Kubespray's variables, and your own with the prefix `{OWN_PREFIX}`;",
        "a name that is none of them is an error. *secret*: keep it under Ansible Vault, it is never shown.",
    ]
    for owner in dict.fromkeys(option.owner for option in options):
        title = "The cluster as a whole" if owner == "cluster" else f"Role `{owner}`"
        lines += ["", f"## {title}", "", "| variable | type | default | meaning |", "|---|---|---|---|"]
        lines += [_markdown_row(row) for row in rows(option for option in options if option.owner == owner)]
    return "\n".join(lines)


def _markdown_row(row: Row) -> str:
    kind = row.type + (f", {row.unit}" if row.unit else "")
    marks = [word for word, holds in (("required", row.required), ("secret", row.no_log)) if holds]
    meaning = row.meaning + (f" One of: {row.choices}." if row.choices else "")
    cells = (f"`{row.name}`", kind + "".join(f", *{mark}*" for mark in marks), _default_cell(row), meaning)
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
        "Groups choose: a service runs on the hosts of the group that bears its name, and a group without hosts means that the service is",
        "not part of the cluster. Groups of your own are welcome; each of their hosts must also stand in one of these.",
    ]
    for owner, title in (("primus", "Read by primus-bootstrap"), ("kubespray", "Read by Kubespray")):
        lines += ["", f"## {title}", "", "| group | meaning |", "|---|---|"]
        lines += [f"| `{group.name}` | {group.meaning} |" for group in load_groups().values() if group.owner == owner]
    return "\n".join(lines)


def json_schema(options: Sequence[Option], *, closed: bool) -> dict[str, Any]:
    """Return a JSON Schema for files of variables (`group_vars/*.yml`, `host_vars/*.yml`).

    Args:
        options: the variables that it describes.
        closed: whether every other name is an error, those of Kubespray, of Ansible and of the user's own excepted.
    """
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Variables of a cluster: group_vars/*.yml and host_vars/*.yml",
        "type": "object",
        "properties": {option.name: _json_option(option) for option in options},
        "$defs": {"template": {"type": "string", "pattern": _TEMPLATE, "description": "A Jinja template, judged on the hosts."}},
    }
    if closed:
        passing = {name: {"description": "Kubespray's, passed through."} for name in sorted(load_kubespray_variables())}
        schema["properties"] = passing | schema["properties"]
        schema["patternProperties"] = {f"^{OWN_PREFIX}": {}, "^ansible_": {}}
        schema["additionalProperties"] = False
    return schema


def _json_option(option: Option) -> dict[str, Any]:
    """Return the schema of one value; a template may stand in the place of any."""
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
