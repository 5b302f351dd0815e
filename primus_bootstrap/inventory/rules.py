"""The rules that look at more than one line. Each is a small function with its reason; `RULES` is all of them.

A rule takes a `Reading` and yields problems. To add one: write the function, put it into a table, add a broken inventory
under tests/data/broken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primus_bootstrap.inventory import (
    rules_gateway,
    rules_groups,
    rules_hosts,
    rules_kube_nodes,
    rules_kube_services,
    rules_kubernetes,
    rules_monitoring,
    rules_network,
    rules_ports,
    rules_registry,
    rules_scheduling,
    rules_slurm,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from primus_bootstrap.errors import Problem
    from primus_bootstrap.inventory.reading import Reading

RULES: tuple[Callable[[Reading], Iterator[Problem]], ...] = (
    *rules_hosts.RULES,
    *rules_groups.RULES,
    *rules_network.RULES,
    *rules_kubernetes.RULES,
    *rules_kube_nodes.RULES,
    *rules_ports.RULES,
    *rules_registry.RULES,
    *rules_slurm.RULES,
    *rules_monitoring.RULES,
    *rules_gateway.RULES,
    *rules_kube_services.RULES,
    *rules_scheduling.RULES,
)


def check(reading: Reading) -> list[Problem]:
    """Return what every rule finds."""
    return [problem for rule in RULES for problem in rule(reading)]
