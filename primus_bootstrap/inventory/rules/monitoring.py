"""Rules about monitoring: receivers that cannot be told and numbers out of range, by the judgements that the roles' preflights use too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.rules.context import ValidationContext

_NUMBERS = ("prometheus_scrape_interval_s", "prometheus_retention_days", "prometheus_retention_gib")
_RECEIVERS = ("alertmanager_receivers", "alertmanager_routes", "alertmanager_smtp_server", "alertmanager_smtp_from")


def prometheus_numbers(reading: ValidationContext) -> Iterator[Problem]:
    """What is kept too short, or looked at too rarely, makes rules that never fire, in silence."""
    host, values = _stated(reading, "prometheus", _NUMBERS)
    if values and all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        for name, what, fix in load_filters("prometheus").prometheus_problems(*values):
            yield _problem(reading, host, name, what, fix, "monitoring-range")


def alertmanager_receivers(reading: ValidationContext) -> Iterator[Problem]:
    """A receiver without a way, or a route to nobody, would be found out when the first alert is not told."""
    host, values = _stated(reading, "alertmanager", _RECEIVERS)
    if not values or not all(isinstance(value, list) and all(isinstance(one, dict) for one in value) for value in values[:2]):
        return  # of another type, which is reported by its own rule, or known to a run only
    for text in load_filters("alertmanager").alertmanager_problems(*values):
        what, _, fix = text.partition(". Fix: ")
        about = "alertmanager_routes" if what.startswith("a route") else "alertmanager_receivers"
        yield _problem(reading, host, about, what, fix, "alertmanager-receiver")


def _stated(reading: ValidationContext, group: str, names: tuple[str, ...]) -> tuple[str, list[Any]]:
    """Return the first host of a group and its values, defaults where it states none; no values where only a run knows them."""
    hosts, options = reading.groups.get(group, ()), load_options()
    if (
        not hosts
        or any(name not in options for name in names)
        or not any(name in reading.merged.of(n) for n in names for name in hosts[:1])
    ):
        return "", []
    try:
        known = reading.view.variables(hosts[0])
        return hosts[0], [known[name] if hosts[0] in reading.merged.of(name) else options[name].default for name in names]
    except InventoryError:  # a template that fails is reported by a rule of its own
        return "", []


def _problem(reading: ValidationContext, host: str, name: str, what: str, fix: str, rule: str) -> Problem:  # noqa: PLR0913, PLR0917 (the problem's fields)
    origin = reading.merged.origin(host, name) or reading.host_origins[host]
    return Problem(origin.file, origin.line, what, fix, rule)


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (prometheus_numbers, alertmanager_receivers)
