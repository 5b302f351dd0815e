"""The addresses of the hosts, with every template resolved that can be."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jinja2
import jinja2.meta
import yaml

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.source.yaml_values import is_template, is_vaulted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from primus_bootstrap.inventory.rules.context import ValidationContext
    from primus_bootstrap.inventory.source.source_map import Definition

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_LIKE_IPV4 = re.compile(r"[\d.]+|\d+(?:\.\d+){2,}[./:\d]*")
_LIKE_IPV6 = re.compile(r"[0-9A-Fa-f:.%/]*:[0-9A-Fa-f:.%/]*:[0-9A-Za-z:.%/]*")


@dataclass(frozen=True, slots=True)
class Address:
    """One host's value of an address variable; `text` is as Ansible would use it."""

    host: str
    text: str
    definition: Definition


@dataclass(frozen=True, slots=True)
class Addresses:
    """One variable of every host that has it. `failures` say why a template has no value; a missing Vault password is none."""

    found: tuple[Address, ...]
    failures: tuple[Problem, ...]


def resolve(reading: ValidationContext, variable: str) -> Addresses:
    """Return the value of every host; once for each variable of an inventory."""
    if variable not in reading.addresses:
        reading.addresses[variable] = _resolve(reading, variable)
    return reading.addresses[variable]


def _resolve(reading: ValidationContext, variable: str) -> Addresses:
    renderers: dict[int, Callable[[str], str] | None] = {}
    found: list[Address] = []
    failures: list[Problem] = []
    for host, definition in reading.merged.of(variable).items():
        node = definition.node
        if not isinstance(node, yaml.ScalarNode):
            continue
        if not is_template(node) and not is_vaulted(node):
            found.append(Address(host, str(node.value), definition))
            continue
        if id(node) not in renderers:
            renderers[id(node)] = None if is_vaulted(node) else _renderer(str(node.value), host)
        try:
            render = renderers[id(node)]
            text = render(host).strip() if render else str(reading.view.variables(host)[variable])
            found.append(Address(host, text, definition))
        except (InventoryError, jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            problems = error.problems if isinstance(error, InventoryError) else (_unresolved(host, definition, error),)
            failures += [problem for problem in problems if problem.rule != "vault-password"]
    return Addresses(tuple(found), tuple(failures))


def _unresolved(host: str, definition: Definition, error: Exception) -> Problem:
    what = f"`{definition.name}` of {host} cannot be resolved: {error}"
    return Problem(definition.origin.file, definition.origin.line, what, "mend the template for this host's name", "template")


def _renderer(template: str, example: str) -> Callable[[str], str] | None:
    """Return a quick renderer for a template that needs nothing but the host's name, and None for any other.

    Ansible takes 0.7 ms for a template; 12,500 hosts of a range have 25,000 of them, and all are like this.
    """
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - renders addresses, not HTML
    try:
        if jinja2.meta.find_undeclared_variables(environment.parse(template)) - {"inventory_hostname"}:
            return None
        compiled = environment.from_string(template)
        compiled.render(inventory_hostname=example)
    except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):
        return None

    def render(host: str) -> str:
        return str(compiled.render(inventory_hostname=host))

    return render


def parse_address(text: str) -> IpAddress | None:
    """Return the address that a text is, or None."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def looks_like_address(text: str) -> bool:
    """Tell whether a text can only be meant as an address: a name resolver would never be asked for `10.0.0.256`."""
    return bool(_LIKE_IPV4.fullmatch(text) or _LIKE_IPV6.fullmatch(text))


def by_value(addresses: Iterable[Address]) -> Mapping[str, list[Address]]:
    """Return the addresses by what they mean: `10.0.0.1`, or a name in lower case."""
    found: dict[str, list[Address]] = {}
    for address in addresses:
        found.setdefault(str(parse_address(address.text) or address.text.lower()), []).append(address)
    return found
