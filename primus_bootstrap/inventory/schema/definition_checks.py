"""Each definition judged once, where it stands: is the name known, and is the value what the role's argument spec asks for?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.schema import names
from primus_bootstrap.inventory.schema import type_check as judging
from primus_bootstrap.inventory.schema.specs import Option, load_options
from primus_bootstrap.inventory.source.yaml_values import entries, is_sealed, is_template, is_vaulted, line_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.source.source_map import Definition
    from primus_bootstrap.inventory.source.vault import Vault


_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Deferred:
    """A value that only a run can judge; the role's own check does so before anything is changed. `why` is one phrase.

    `variable` is empty where a whole file waits.
    """

    variable: str
    origin: Origin
    why: str


def judge_definitions(definitions: Iterable[Definition], vault: Vault) -> tuple[list[Problem], list[Deferred]]:
    """Return what is wrong with the definitions, and which of their values must wait."""
    options = load_options()
    problems: list[Problem] = []
    deferred: list[Deferred] = []
    for definition in definitions:
        option = options.get(definition.name)
        problems += _sealed_wrongly(definition, vault)
        if option is None:
            problems += _unknown(definition)
            problems += _ansible_secret(definition)
            deferred += _vaulted(definition)
            continue
        quotable = not option.no_log and not definition.encrypted
        for found in judging.judge_value(option, definition.node, quotable=quotable):
            if isinstance(found, judging.DeferredPart):
                deferred.append(Deferred(definition.name, replace(definition.origin, line=found.line), found.why))
            else:
                problems.append(Problem(definition.origin.file, found.line, found.what, found.fix, found.rule))
        if not definition.encrypted:
            problems += _plain_secrets(option, definition.node, definition)
    return problems, deferred


def _unknown(definition: Definition) -> Iterator[Problem]:
    name, origin = definition.name, definition.origin
    if name == "ansible_group_priority" and definition.node.tag != "tag:yaml.org,2002:int":
        # Ansible reads it while it loads the file, and stops with a message that names no line.
        yield Problem(origin.file, origin.line, f"{name} must be a whole number", "write the number without quotes", "type")
    if names.is_known_variable(name):
        if not name.isidentifier():
            yield Problem(
                origin.file,
                origin.line,
                f"{name}: a variable's name may hold only letters, digits and `_`",
                f"call it {name.replace('-', '_')}",
                "variable-name",
            )
        return
    near = names.nearest_variable(name)
    fix = f"did you mean {near}?" if near else f"delete it, or call it {names.OWN_PREFIX}{name} if it is a variable of your own"
    yield Problem(origin.file, origin.line, f"{name}: no role has this variable, nor Kubespray, nor Ansible", fix, "unknown-variable")


def _sealed_wrongly(definition: Definition, vault: Vault) -> Iterator[Problem]:
    """Each inline Vault value must be one, and open where there is a password: a run would stop half-way."""
    for node in _scalars(definition.node):
        if is_vaulted(node) and not is_sealed(node):
            what = f"{definition.name} is tagged !vault and holds nothing that ansible-vault made"
            fix = "encrypt the value with `ansible-vault encrypt_string` and give all that it prints"
            yield Problem(definition.origin.file, line_of(node), what, fix, "vault-value")
        elif is_vaulted(node) and vault:
            try:
                vault.decrypt(node.value)
            except ValueError as error:
                what = f"{definition.name} cannot be decrypted: {error}"
                fix = "give the right Vault password, or encrypt the value again with `ansible-vault encrypt_string`"
                yield Problem(definition.origin.file, line_of(node), what, fix, "vault-password")


def _vaulted(definition: Definition) -> Iterator[Deferred]:
    """A variable of Kubespray's, of Ansible's or of the user's own waits for the password as those of the roles do."""
    for node in _scalars(definition.node):
        if is_vaulted(node) and is_sealed(node):
            yield Deferred(definition.name, replace(definition.origin, line=line_of(node)), "under Vault")


def _ansible_secret(definition: Definition) -> Iterator[Problem]:
    """Ansible's own passwords have no spec of ours, and are secrets all the same."""
    if names.is_ansible_secret(definition.name) and not definition.encrypted:
        for node in _scalars(definition.node):
            if node.tag != _NULL and not is_vaulted(node) and not is_template(node):
                yield _plain_secret(definition, node)


def _plain_secrets(option: Option, node: yaml.Node, definition: Definition) -> Iterator[Problem]:
    """A secret that stands in plain text is read by everyone who reads the repository.

    A path to a secret is none: such an option says `type: path`.
    """
    if option.no_log and option.type != "path":
        for scalar in _scalars(node):
            if scalar.tag != _NULL and scalar.value and not is_vaulted(scalar) and not is_template(scalar):
                yield _plain_secret(definition, scalar)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _plain_secrets(option, item, definition)
    elif isinstance(node, yaml.MappingNode):
        for key, value in entries(node):
            if sub := option.options.get(str(key.value)):
                yield from _plain_secrets(sub, value, definition)


def _plain_secret(definition: Definition, node: yaml.Node) -> Problem:
    what = f"{definition.name} is a secret and stands here in plain text"
    fix = "encrypt it (`ansible-vault encrypt_string`), or read it: \"{{ lookup('ansible.builtin.env', 'NAME') }}\""
    return Problem(definition.origin.file, line_of(node), what, fix, "plain-secret")


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Yield the values inside a node, keys left out."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _scalars(value)
