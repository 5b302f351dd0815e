"""What a YAML node says as plain Python values, judged as Ansible's own YAML reader would build them."""

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
    """A value that only the Vault password opens."""

    ciphertext: str


class _Constructor(SafeConstructor):
    """PyYAML takes tags by class only; these three are Ansible's."""

    def unsafe(self, node: yaml.Node) -> Any:
        """Build what the node would be without its `!unsafe` tag."""
        plain = copy.copy(node)
        plain.tag = Resolver().resolve(type(node), node.value, (True, False))  # type: ignore[no-untyped-call]
        return self.construct_object(plain, deep=True)

    def vault(self, node: yaml.Node) -> Vaulted:
        """Keep the ciphertext as it is."""
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
        ConstructorError: a tag that Ansible does not know, or a value that its tag does not allow.
        ValueError: a date or a number that there is not.
    """
    if node.tag == _STR and isinstance(node, yaml.ScalarNode):
        return node.value
    return _Constructor().construct_document(node)


def is_vaulted(node: yaml.Node) -> bool:
    """Tell whether only the Vault password opens this value."""
    return node.tag in VAULT_TAGS


def is_sealed(node: yaml.Node) -> bool:
    """Tell whether a value that is tagged as vaulted holds what `ansible-vault` makes."""
    return isinstance(node, yaml.ScalarNode) and bool(_ENVELOPE.match(node.value))


def is_template(node: yaml.Node) -> bool:
    """Tell whether Ansible would run this scalar through its template engine."""
    return node.tag == _STR and isinstance(node, yaml.ScalarNode) and any(mark in node.value for mark in _TEMPLATE_MARKS)


def entries(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield a mapping's keys and values, those of `<<` merges first, so that the last one of a name counts."""
    for key, value in node.value:
        if key.tag == _MERGE:
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(source, yaml.MappingNode):
                    yield from entries(source)
    for key, value in node.value:
        if key.tag != _MERGE:
            yield key, value


def line_of(node: yaml.Node) -> int:
    """Return the node's line, counted from 1."""
    return int(node.start_mark.line) + 1
