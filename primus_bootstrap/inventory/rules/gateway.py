"""Rules about the Envoy gateway, by the checks of the role `envoy`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.yaml_values import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext


def envoy_gateway(context: ValidationContext) -> Iterator[Problem]:
    """Report listeners, routes and keys that Envoy would reject, and routes that are public by mistake."""
    if "envoy_listeners" not in load_options():  # the content folder has no role `envoy`
        return
    checks = load_filters("envoy").envoy_findings
    reported = set()
    for host in context.groups.get("envoy", ()):
        for finding in checks.all_findings(_values(context, host, checks)):
            origin = context.origin(host, finding.about, "envoy")
            if (origin, finding.what) not in reported:
                reported.add((origin, finding.what))
                yield origin.problem(finding.what, finding.fix, finding.rule)


def _values(context: ValidationContext, host: str, checks: Any) -> dict[str, Any]:
    """Return the role's variables for one host. A value that only a run can resolve is `checks.UNKNOWN`."""
    variables = context.view.variables(host)
    values: dict[str, Any] = {}
    for name in checks.VARIABLES:
        try:
            values[name] = variables[name] if name in variables else load_options()[name].default
        except InventoryError:  # `unresolvable` reports a template that fails
            definition = context.variable_index.by_host(name).get(host)
            raw = value_of(definition.node) if definition else None
            # The keys of a mapping are checked even if its values are secrets.
            values[name] = dict.fromkeys(raw, checks.UNKNOWN) if isinstance(raw, dict) else checks.UNKNOWN
    return values


RULES: tuple[Rule, ...] = (envoy_gateway,)
