"""Rules about ports: two services of one host that are told to listen on the same one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.yaml_values import is_template, is_vaulted, value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.rules.context import ValidationContext


def port_twice(reading: ValidationContext) -> Iterator[Problem]:
    """The service that starts second does not start, and says so only in its own journal."""
    stated = load_options().get("preflight_ports")
    if stated is None:  # a set of roles of somebody's own
        return
    filters, table = load_filters("preflight"), stated.default
    memberships: dict[str, list[str]] = defaultdict(list)
    for group in {one["group"] for one in table}:
        for host in reading.groups.get(group, ()):
            memberships[host].append(group)
    reported: set[tuple[int, tuple[str, ...]]] = set()
    for host in reading.hosts:
        names = (*filters.PORT_VARIABLES.values(), *filters.REDIS_VARIABLES)
        variables = {name: found for name in names if (found := _stated(reading, host, name)) is not None}
        for port, programs in filters.port_twins(filters.preflight_ports(table, memberships.get(host, ()), variables)):
            if (port, programs) not in reported:
                reported.add((port, programs))
                yield _problem(reading, host, port, [(one, filters.port_variable(one, variables)) for one in programs])


def _stated(reading: ValidationContext, host: str, name: str) -> int | str | None:
    """Return a port, or what decides on one, that is stated for a host; None where none is, or where only a run knows it."""
    found = reading.merged.of(name).get(host)
    if found is None or is_template(found.node) or is_vaulted(found.node):
        return None
    value: Any = value_of(found.node)
    decides = isinstance(value, (bool, str)) and not name.endswith("_port")
    return value if decides or (isinstance(value, int) and not isinstance(value, bool)) else None


def _problem(reading: ValidationContext, host: str, port: int, programs: list[tuple[str, str]]) -> Problem:
    origins = [reading.merged.origin(host, variable) for _, variable in programs if variable]
    origin = next((one for one in origins if one), None) or reading.host_origins[host]
    shown = [f"{program} ({variable})" if variable else program for program, variable in programs]
    what = f"port {port} of {host} is stated for {' and for '.join(shown)}"
    return Problem(origin.file, origin.line, what, "give each a port of its own", "port-twice")


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (port_twice,)
