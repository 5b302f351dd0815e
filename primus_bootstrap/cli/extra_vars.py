"""Checks the variables of `--extra-vars` before a host is contacted."""

from __future__ import annotations

from pathlib import Path

import yaml

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.inventory.schema.names import explain_unknown_variable, is_known_variable


def check_extra_vars(value: str) -> None:
    """Check one value of `--extra-vars`; a file that Vault encrypts is not read.

    Raises:
        UsageError: The file is missing or not a mapping, or a variable is unknown.
    """
    if value.startswith("@"):
        names = _names(value, Path(value[1:]).expanduser())
    elif "=" in value:
        names = [value.partition("=")[0].strip()]
    else:
        raise UsageError(f"--extra-vars {value}: neither @FILE nor key=value", fix="use -e @values.yml or -e name=value")
    for name in names:
        if not is_known_variable(name):
            what, fix = explain_unknown_variable(name)
            raise UsageError(f"--extra-vars {value.partition('=')[0]}: {what}", fix=fix)


def _names(value: str, path: Path) -> list[str]:
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
    return [str(key.value) for key, _ in node.value] if node else []
