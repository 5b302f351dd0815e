"""Rules about the object store, by the checks of the role `object_store`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.inventory.ansible.role_filters import load_filters
from primus_bootstrap.inventory.source.yaml_values import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.core.errors import Problem
    from primus_bootstrap.inventory.rules.context import Rule, ValidationContext


def object_store(context: ValidationContext) -> Iterator[Problem]:
    """Report a group without a majority after the loss of one host, too many copies, ports used twice, and invalid buckets."""
    hosts = context.groups.get("object_store", ())
    if not hosts:
        return
    filters = load_filters("object_store")
    values = context.resolved_values(hosts[0], filters.VARIABLES)
    for about, what, fix, rule in filters.findings(list(hosts), values, _accounts(context, hosts[0])):
        yield context.origin(hosts[0], about, "object_store").problem(what, fix, rule)


def _accounts(context: ValidationContext, host: str) -> list[dict[str, Any]]:
    """Return names and buckets of the accounts. Their keys are references that only a run resolves."""
    definition = context.variable_index.by_host("object_store_accounts").get(host)
    raw: Any = value_of(definition.node) if definition else []
    entries = [one for one in raw if isinstance(one, dict)] if isinstance(raw, list) else []
    return [{"name": one.get("name"), "buckets": one.get("buckets")} for one in entries if isinstance(one.get("buckets"), list)]


RULES: tuple[Rule, ...] = (object_store,)
