"""Rules about Prometheus and Alertmanager, by the checks of their roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext

_NUMBERS = ("prometheus_scrape_interval_s", "prometheus_retention_days", "prometheus_retention_gib")
_RECEIVERS = ("alertmanager_receivers", "alertmanager_routes", "alertmanager_smtp_server", "alertmanager_smtp_from")


def prometheus_numbers(context: ValidationContext) -> Iterator[Problem]:
    """Report a retention or scrape interval with which alert rules could never fire."""
    host, values = _values(context, "prometheus", _NUMBERS)
    if values and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        for name, what, fix in load_filters("prometheus").prometheus_problems(*values):
            yield _origin(context, host, name).problem(what, fix, "monitoring-range")


def alertmanager_receivers(context: ValidationContext) -> Iterator[Problem]:
    """Report receivers without an address, and routes to receivers that do not exist."""
    host, values = _values(context, "alertmanager", _RECEIVERS)
    if not values or not all(isinstance(value, list) and all(isinstance(one, dict) for one in value) for value in values[:2]):
        return  # the type check reports another type; a template is resolved only in a run
    for text in load_filters("alertmanager").alertmanager_problems(*values):
        what, _, fix = text.partition(". Fix: ")
        about = "alertmanager_routes" if what.startswith("a route") else "alertmanager_receivers"
        yield _origin(context, host, about).problem(what, fix, "alertmanager-receiver")


def _values(context: ValidationContext, group: str, names: tuple[str, ...]) -> tuple[str, list[Any]]:
    """Return the first host of a group and its values, with the roles' defaults.

    Return no values if the host sets none of the variables, or if only a run can resolve one of them.
    """
    options = load_options()
    host = next(iter(context.groups.get(group, ())), "")
    if not host or any(name not in options for name in names):
        return "", []
    is_set = {name: host in context.variable_index.by_host(name) for name in names}
    if not any(is_set.values()):
        return "", []
    try:
        variables = context.view.variables(host)
        return host, [variables[name] if is_set[name] else options[name].default for name in names]
    except InventoryError:  # `unresolvable` reports a template that fails
        return "", []


def _origin(context: ValidationContext, host: str, name: str) -> Origin:
    return context.variable_index.origin(host, name) or context.host_origins[host]


RULES: tuple[Rule, ...] = (prometheus_numbers, alertmanager_receivers)
