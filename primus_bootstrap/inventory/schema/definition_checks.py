"""Check each definition of a variable: its name, its type by the role's argument spec, and that secrets are encrypted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import yaml

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.schema import names
from primus_bootstrap.inventory.schema.specs import Option, load_options
from primus_bootstrap.inventory.schema.type_check import DeferredPart, check_value
from primus_bootstrap.inventory.source.yaml_values import entries, has_ciphertext, is_deferred, is_null, is_vaulted, line_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.source.source_map import Definition
    from primus_bootstrap.inventory.source.vault import Vault


@dataclass(frozen=True, slots=True)
class Deferred:
    """A value that only a run can check, with the reason. The role checks it before it changes anything.

    `variable` is empty for a whole file.
    """

    variable: str
    origin: Origin
    why: str


def check_definitions(definitions: Iterable[Definition], vault: Vault) -> tuple[list[Problem], list[Deferred]]:
    """Return the problems of the definitions, and the values that only a run can check."""
    options = load_options()
    problems: list[Problem] = []
    deferred: list[Deferred] = []
    for definition in definitions:
        option = options.get(definition.name)
        problems += _vault_problems(definition, vault)
        if option is None:
            problems += _name_problems(definition)
            problems += _plain_ansible_secrets(definition)
            deferred += _encrypted_values(definition)
            continue
        quotable = not option.no_log and not definition.encrypted
        for found in check_value(option, definition.node, quotable=quotable):
            if isinstance(found, DeferredPart):
                deferred.append(Deferred(definition.name, replace(definition.origin, line=found.line), found.why))
            else:
                problems.append(Problem(definition.origin.file, found.line, found.what, found.fix, found.rule))
        if not definition.encrypted:
            problems += _plain_secrets(option, definition.node, definition)
    return problems, deferred


def _name_problems(definition: Definition) -> Iterator[Problem]:
    """Check the name of a variable that no argument spec declares."""
    name, origin = definition.name, definition.origin
    if name == "ansible_group_priority" and definition.node.tag != "tag:yaml.org,2002:int":
        # Ansible would stop while it loads the file, with a message without a line.
        yield origin.problem(f"{name} must be a whole number", "write the number without quotes", "type")
    if names.is_known_variable(name):
        if not name.isidentifier():
            what = f"{name}: the name of a variable must contain only letters, digits and `_`"
            yield origin.problem(what, f"rename it to {name.replace('-', '_')}", "variable-name")
        return
    what, fix = names.explain_unknown_variable(name)
    yield origin.problem(what, fix, "unknown-variable")


def _vault_problems(definition: Definition, vault: Vault) -> Iterator[Problem]:
    """Check that each `!vault` value has ciphertext that the password, if given, decrypts. A run would stop at a wrong one."""
    for node in _scalars(definition.node):
        if is_vaulted(node) and not has_ciphertext(node):
            what = f"{definition.name} is tagged !vault, but is not the output of ansible-vault"
            fix = "run `ansible-vault encrypt_string` and paste its whole output"
            yield Problem(definition.origin.file, line_of(node), what, fix, "vault-value")
        elif is_vaulted(node) and vault:
            try:
                vault.decrypt(node.value)
            except ValueError as error:
                what = f"{definition.name} cannot be decrypted: {error}"
                fix = "use the right Vault password, or encrypt the value again with `ansible-vault encrypt_string`"
                yield Problem(definition.origin.file, line_of(node), what, fix, "vault-password")


def _encrypted_values(definition: Definition) -> Iterator[Deferred]:
    """Yield the encrypted values of a variable that no argument spec declares."""
    for node in _scalars(definition.node):
        if is_vaulted(node) and has_ciphertext(node):
            yield Deferred(definition.name, replace(definition.origin, line=line_of(node)), "encrypted with Vault")


def _plain_ansible_secrets(definition: Definition) -> Iterator[Problem]:
    """Report passwords of Ansible itself in plain text."""
    if names.is_ansible_secret(definition.name) and not definition.encrypted:
        for node in _scalars(definition.node):
            if not is_null(node) and not is_deferred(node):
                yield _plain_secret(definition, node)


def _plain_secrets(option: Option, node: yaml.Node, definition: Definition) -> Iterator[Problem]:
    """Report secrets in plain text. The path of a file with a secret (`type: path`) is not a secret."""
    if option.no_log and option.type != "path":
        for scalar in _scalars(node):
            if not is_null(scalar) and scalar.value and not is_deferred(scalar):
                yield _plain_secret(definition, scalar)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _plain_secrets(option, item, definition)
    elif isinstance(node, yaml.MappingNode):
        for key, value in entries(node):
            if nested := option.options.get(str(key.value)):
                yield from _plain_secrets(nested, value, definition)


def _plain_secret(definition: Definition, node: yaml.Node) -> Problem:
    what = f"{definition.name} is a secret in plain text"
    fix = "encrypt it with `ansible-vault encrypt_string`, or write \"{{ lookup('ansible.builtin.env', 'NAME') }}\""
    return Problem(definition.origin.file, line_of(node), what, fix, "plain-secret")


def _scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Yield the scalar values inside a node, without keys."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _scalars(item)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _scalars(value)
