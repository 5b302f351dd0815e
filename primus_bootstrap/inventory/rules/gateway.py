"""Rules about the gateway: what Envoy would refuse, or would serve to anybody, is refused here, by the judgement that the role uses too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.errors import InventoryError, Problem
from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.schema.specs import load_options
from primus_bootstrap.inventory.source.yaml_values import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.inventory.cluster import Origin
    from primus_bootstrap.inventory.rules.context import ValidationContext


def envoy_gateway(reading: ValidationContext) -> Iterator[Problem]:
    """A route to an upstream that nobody states, or one that is open by oversight, would be found out by its clients."""
    if "envoy_listeners" not in load_options():  # a set of roles of somebody's own
        return
    judge = load_filters("envoy").envoy_judge
    reported = set()
    for host in reading.groups.get("envoy", ()):
        stated = _stated(reading, host, judge)
        for one in judge.all_findings(stated):
            origin = _origin(reading, host, one.about)
            if (origin, one.what) not in reported:
                reported.add((origin, one.what))
                yield Problem(origin.file, origin.line, one.what, one.fix, one.rule)


def _stated(reading: ValidationContext, host: str, judge: Any) -> dict[str, Any]:
    """Return the role's variables as one host has them; one that only a run knows is `judge.UNKNOWN`."""
    variables = reading.view.variables(host)
    found: dict[str, Any] = {}
    for name in judge.VARIABLES:
        try:
            found[name] = variables[name] if name in variables else load_options()[name].default
        except InventoryError:  # a template that fails is reported by a rule of its own
            written = reading.merged.of(name).get(host)
            raw = value_of(written.node) if written else None
            found[name] = dict.fromkeys(raw, judge.UNKNOWN) if isinstance(raw, dict) else judge.UNKNOWN  # clients are known by name
    return found


def _origin(reading: ValidationContext, host: str, about: str) -> Origin:
    """Return where the variable is written that counts for a host, or where the group is named."""
    return reading.merged.origin(host, about) or reading.group_origin("envoy")


RULES: tuple[Callable[[ValidationContext], Iterator[Problem]], ...] = (envoy_gateway,)
