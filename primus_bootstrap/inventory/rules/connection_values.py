"""Check variables of Ansible's connection, whose values Ansible would reject only when it connects to the host."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from primus_bootstrap.core.suggestions import did_you_mean
from primus_bootstrap.inventory.schema.names import is_ansible_plugin, usual_plugins

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PLUGIN_VARIABLES = {"ansible_connection": "connection", "ansible_become_method": "become"}
# https://github.com/ansible/ansible/blob/v2.19.0/lib/ansible/module_utils/parsing/convert_bool.py
_BOOLEANS = frozenset({"y", "yes", "on", "1", "true", "t", "n", "no", "off", "0", "false", "f"})
_ENVIRONMENT = re.compile(r"\$\{\w+\}")  # ssh replaces it in a path: ssh_config(5), ENVIRONMENT VARIABLES


def _bad_plugin(variable: str, text: str) -> tuple[str, str] | None:
    kind = _PLUGIN_VARIABLES[variable]
    if is_ansible_plugin(kind, text):
        return None
    return (f"{variable}: Ansible has no {kind} plugin `{text}`", did_you_mean(text, usual_plugins(kind)))


def _bad_user(variable: str, text: str) -> tuple[str, str] | None:
    if re.search(r"\s", text):
        return (f"{variable}: `{text}` contains a space", "write the name of one account")
    return _bad_braces(variable, text)


def _bad_path(variable: str, text: str) -> tuple[str, str] | None:
    return _bad_braces(variable, _ENVIRONMENT.sub("", text))


def _bad_braces(variable: str, text: str) -> tuple[str, str] | None:
    """Report braces that remain after the templates of a value are resolved."""
    if re.search(r"[{}]", text):
        return (f"{variable}: `{text}` contains a brace that is no part of a template", 'write a template as "{{ name }}"')
    return None


def _bad_boolean(variable: str, text: str) -> tuple[str, str] | None:
    if text.lower() in _BOOLEANS:
        return None
    return (f"{variable}: `{text}` is neither true nor false", "choose from: true, false")


# Each check takes the name and the resolved text of a variable, and returns what is wrong and the fix, or None.
CHECKS: Mapping[str, Callable[[str, str], tuple[str, str] | None]] = {
    **dict.fromkeys(_PLUGIN_VARIABLES, _bad_plugin),
    **dict.fromkeys(("ansible_user", "ansible_ssh_user", "ansible_become_user"), _bad_user),
    **dict.fromkeys(("ansible_private_key_file", "ansible_ssh_private_key_file"), _bad_path),
    "ansible_become": _bad_boolean,
}
