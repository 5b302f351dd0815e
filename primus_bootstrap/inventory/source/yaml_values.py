"""Turn YAML nodes into Python values, as Ansible's YAML loader does."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

if TYPE_CHECKING:
    from collections.abc import Iterator

VAULT_TAGS = ("!vault", "!vault-encrypted")
_STR = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_ENVELOPE = re.compile(r"\s*\$ANSIBLE_VAULT;\d+\.\d+;\w+")
_TEMPLATE_MARKS = ("{{", "{%", "{#")


@dataclass(frozen=True, slots=True)
class Vaulted:
    """An encrypted value (`!vault`)."""

    ciphertext: str


class _Constructor(SafeConstructor):
    """SafeConstructor with Ansible's tags. PyYAML registers tags on the class."""

    def unsafe(self, node: yaml.Node) -> Any:
        """Build the value that the node has without its `!unsafe` tag."""
        plain = copy.copy(node)
        plain.tag = Resolver().resolve(type(node), node.value, (True, False))  # type: ignore[no-untyped-call]
        return self.construct_object(plain, deep=True)

    def vault(self, node: yaml.Node) -> Vaulted:
        """Return the ciphertext."""
        if not isinstance(node, yaml.ScalarNode):
            raise ConstructorError(None, None, f"{node.tag} needs text", node.start_mark)
        return Vaulted(node.value)


_Constructor.yaml_constructors = {
    **SafeConstructor.yaml_constructors,
    "!unsafe": _Constructor.unsafe,
    **dict.fromkeys(VAULT_TAGS, _Constructor.vault),
}


def value_of(node: yaml.Node) -> Any:
    """Return the node's value.

    Raises:
        ConstructorError: Ansible does not know the tag, or the tag does not allow this value.
        ValueError: The value is not a valid date or number.
    """
    if node.tag == _STR and isinstance(node, yaml.ScalarNode):
        return node.value
    return _Constructor().construct_document(node)


def is_null(node: yaml.Node) -> bool:
    """Return whether the node is null, for example because nothing follows the `:`."""
    return node.tag == "tag:yaml.org,2002:null"


def is_vaulted(node: yaml.Node) -> bool:
    """Return whether the node has a Vault tag."""
    return node.tag in VAULT_TAGS


def has_ciphertext(node: yaml.Node) -> bool:
    """Return whether a value has the form of `ansible-vault` output."""
    return isinstance(node, yaml.ScalarNode) and bool(_ENVELOPE.match(node.value))


def is_template(node: yaml.Node) -> bool:
    """Return whether Ansible would evaluate this scalar as a template."""
    return node.tag == _STR and isinstance(node, yaml.ScalarNode) and any(mark in node.value for mark in _TEMPLATE_MARKS)


def is_deferred(node: yaml.Node) -> bool:
    """Return whether only a run can resolve the value: it is a template, or encrypted."""
    return is_template(node) or is_vaulted(node)


def entries(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield a mapping's keys and values. Those of `<<` merges come first, so the last entry of a name is effective."""
    for key, value in node.value:
        if key.tag == _MERGE:
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(source, yaml.MappingNode):
                    yield from entries(source)
    for key, value in node.value:
        if key.tag != _MERGE:
            yield key, value


def line_of(node: yaml.Node) -> int:
    """Return the node's line, from 1."""
    return int(node.start_mark.line) + 1
