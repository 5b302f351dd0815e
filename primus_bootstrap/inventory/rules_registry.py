"""Rules about the image registry and who trusts it, by the judgements that the roles' preflights use too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from primus_bootstrap.errors import InventoryError, Problem
from primus_bootstrap.inventory.role_code import load_filters
from primus_bootstrap.inventory.values import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from primus_bootstrap.inventory.reading import Reading


def registry(reading: Reading) -> Iterator[Problem]:
    """A second host would hold other images than the first; a missing bucket or key would be found out at the start of the service."""
    hosts = reading.groups.get("oci_registry", ())
    if not hosts:
        return
    filters = load_filters("oci_registry")
    stated = _stated(reading, hosts[0], filters.VARIABLES)
    # Names only: passwords are references that nothing but a run resolves.
    written = reading.merged.of("oci_registry_accounts").get(hosts[0])
    listed: Any = value_of(written.node) if written else []
    accounts = (
        [one["name"] for one in listed if isinstance(one, dict) and isinstance(one.get("name"), str)] if isinstance(listed, list) else []
    )
    if "oci_registry_username" not in stated:
        stated["oci_registry_username"] = "cluster"
    yield from _problems(reading, "oci_registry", hosts[0], filters.findings(list(hosts), stated, accounts))


def registry_trust(reading: Reading) -> Iterator[Problem]:
    """A policy without a key would refuse every image; keys without a policy would let every image in."""
    filters = load_filters("registry_trust")
    reported: set[tuple[str, str]] = set()
    for host in reading.groups.get("container_host", ()):
        stated = _stated(reading, host, filters.VARIABLES)
        found = [one for one in filters.findings(stated, bool(reading.groups.get("oci_registry"))) if (one[0], one[1]) not in reported]
        reported.update((about, what) for about, what, _, _ in found)
        yield from _problems(reading, "container_host", host, found)


def _stated(reading: Reading, host: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the variables that a host has, without those that only a run knows."""
    stated = {}
    for name in names:
        if host in reading.merged.of(name):
            try:
                stated[name] = reading.view.variables(host)[name]
            except InventoryError:  # a template that fails is reported by a rule of its own
                continue
    return stated


def _problems(reading: Reading, group: str, host: str, found: Sequence[tuple[str, str, str, str]]) -> Iterator[Problem]:
    for about, what, fix, rule in found:
        origin = reading.merged.origin(host, about) or reading.group_origin(group)
        yield Problem(origin.file, origin.line, what, fix, rule)


RULES: tuple[Callable[[Reading], Iterator[Problem]], ...] = (registry, registry_trust)
