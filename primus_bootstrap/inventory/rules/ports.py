"""Rules about ports: two services on one host with the same port."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.yaml_values import is_deferred, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext


def port_twice(context: ValidationContext) -> Iterator[Problem]:
    """Report two services on one host with the same port; the second one could not start."""
    option = load_options().get("preflight_ports")
    if option is None:  # the content folder has no role `preflight`
        return
    filters, table = load_filters("preflight"), option.default
    names = (*filters.PORT_VARIABLES.values(), *filters.REDIS_VARIABLES)
    groups_of: dict[str, list[str]] = defaultdict(list)
    for group in {row["group"] for row in table}:
        for host in context.groups.get(group, ()):
            groups_of[host].append(group)
    reported: set[tuple[int, tuple[str, ...]]] = set()
    for host in context.hosts:
        values = {name: value for name in names if (value := _value(context, host, name)) is not None}
        for port, programs in filters.duplicate_ports(filters.preflight_ports(table, groups_of.get(host, ()), values)):
            if (port, programs) not in reported:
                reported.add((port, programs))
                yield _problem(context, host, port, [(program, filters.port_variable(program, values)) for program in programs])


def _value(context: ValidationContext, host: str, name: str) -> int | str | None:
    """Return a port, or a setting that determines one; None if it is not set or only a run can resolve it."""
    definition = context.variable_index.by_host(name).get(host)
    if definition is None or is_deferred(definition.node):
        return None
    value: Any = value_of(definition.node)
    is_setting = isinstance(value, (bool, str)) and not name.endswith("_port")
    return value if is_setting or (isinstance(value, int) and not isinstance(value, bool)) else None


def _problem(context: ValidationContext, host: str, port: int, programs: list[tuple[str, str]]) -> Problem:
    """Return the problem of one port; `programs` are (program, its port variable or an empty string)."""
    origins = [context.variable_index.origin(host, variable) for _, variable in programs if variable]
    origin = next((one for one in origins if one), None) or context.host_origins[host]
    shown = [f"{program} ({variable})" if variable else program for program, variable in programs]
    what = f"port {port} of {host} is used by {' and by '.join(shown)}"
    variables = [variable for _, variable in programs if variable]
    return origin.problem(what, f"set {' or '.join(variables)} to another port" if variables else "use different ports", "port-twice")


RULES: tuple[Rule, ...] = (port_twice,)
