"""Checks the variables of `--extra-vars` before a host is contacted, like those of hosts.yaml."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import UsageError, joined
from primus_bootstrap.inventory.schema.names import explain_unknown_variable, is_known_variable
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.schema.type_check import Fault, check_value
from primus_bootstrap.inventory.source.yaml_values import entries

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_extra_vars(value: str) -> None:
    """Check names, types and choices of one value of `--extra-vars`; a file that Vault encrypts is not read.

    Raises:
        UsageError: The file is missing or not a mapping, a variable is unknown, or a value is wrong; with every mistake.
    """
    if value.startswith("@"):
        variables = _of_file(value, Path(value[1:]).expanduser())
    elif "=" in value:
        variables = [_of_word(word) for word in _words(value)]
    else:
        raise UsageError(f"--extra-vars {value}: neither @FILE nor key=value", fix="use -e @values.yml or -e name=value")
    errors = [error for name, node in variables for error in _errors(value if value.startswith("@") else name, name, node)]
    if errors:
        raise joined(errors)


def _errors(shown: str, name: str, node: yaml.Node | None) -> Iterator[UsageError]:
    """Yield the mistakes in one variable; `shown` is the part of the command line that messages show."""
    if not is_known_variable(name):
        what, fix = explain_unknown_variable(name)
        yield UsageError(f"--extra-vars {shown}: {what}", fix=fix)
    elif node is not None and (option := load_options().get(name)):
        for fault in check_value(option, node, quotable=True):
            if isinstance(fault, Fault):
                line = f":{fault.line}" if shown.startswith("@") else ""
                yield UsageError(f"--extra-vars {shown}{line}: {fault.what}", fix=fault.fix)


def _words(value: str) -> list[str]:
    """Return the `name=value` words, which Ansible splits like a shell."""
    try:
        return [word for word in shlex.split(value) if "=" in word]
    except ValueError:  # an apostrophe in a text
        return [value]


def _of_word(word: str) -> tuple[str, yaml.Node | None]:
    """Return name and value; None for a template, which only the run resolves, and for a text that is no YAML."""
    name, _, text = word.partition("=")
    try:
        return name.strip(), None if "{{" in text else yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        return name.strip(), None


def _of_file(value: str, path: Path) -> list[tuple[str, yaml.Node | None]]:
    if not path.is_file():
        raise UsageError(f"--extra-vars {value}: no such file", fix="put the path of a YAML or JSON file after the @")
    text = path.read_text(encoding="utf-8", errors="replace")
    if text.startswith("$ANSIBLE_VAULT"):
        return []
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise UsageError(f"--extra-vars {value}: not valid YAML: {' '.join(str(error).split())}", fix="correct the file") from error
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise UsageError(f"--extra-vars {value}: not a mapping", fix="write one `name: value` per line")
    return [(str(key.value), body) for key, body in entries(node)] if node else []
